"""The journal records each thing once, refuses what contradicts it, and gives back what it was given."""

import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.decisions import Admit, Close, Decision, Reopen, Start, Take
from dora_rl.core.inputs import Published, Scored, StepLost, Tick
from dora_rl.core.recipe import Control, Recipe
from dora_rl.store.errors import Contradiction, JournalDamaged, JournalError
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import (
    AnyPayload,
    Progress,
    Rewarded,
    Rewound,
    StepMetrics,
    StreamedRow,
    Stretch,
)

from .appends import RECIPE, admission, check, completed, progress, prompt, start, write


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.create(tmp_path / "journal.sqlite", RECIPE) as journal:
        yield journal


def admit(journal: Journal, *groups: int) -> None:
    for group in groups:
        journal.append([admission(group)], [prompt(group)])


def finish(journal: Journal, group: int, tokens: int = 4) -> None:
    """Complete and score both members of a group."""
    for key in (2 * group, 2 * group + 1):
        journal.append(
            [],
            [
                progress(key, tokens),
                completed(key, tokens),
                Rewarded(trajectory=key, attempt=0, reward=float(key), values={"f": 1.0, "g": None}),
            ],
        )


def decided(journal: Journal, *decisions: Decision) -> None:
    journal.append([(Tick(at=9.0), list(decisions))])


def take(number: int, *groups: int) -> Take:
    return Take(batch=number, groups=groups, staleness=(0,) * len(groups))


def publish(journal: Journal, version: int) -> None:
    journal.append([(Published(at=9.0, version=version, train_s=1.0), [])])


def trained(journal: Journal, count: int) -> None:
    """So many steps of one group each."""
    for number in range(count):
        admit(journal, number)
        finish(journal, number)
        decided(journal, take(number, number))
        publish(journal, number + 1)


# --- opening ---


def test_a_journal_opens_as_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal.create(path, RECIPE) as journal:
        write(journal, 5)
    with Journal.open(path) as journal:
        assert journal.recipe == RECIPE
        check(journal, 5)


def test_a_journal_is_never_made_over_another(journal: Journal) -> None:
    with pytest.raises(JournalError, match="exists already"):
        Journal.create(journal.path, RECIPE)


def test_a_log_left_by_another_journal_is_not_read_as_its_own(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal.create(path, RECIPE)
    write(journal, 3)
    log = path.with_name(path.name + "-wal").read_bytes()
    journal.close()
    path.unlink()
    path.with_name(path.name + "-wal").write_bytes(log)
    with Journal.create(path, RECIPE) as journal:
        check(journal, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no journal"), (b"", "is no journal"), (b"x" * 4096, "is no journal")],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "journal.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(JournalDamaged, match=message) as refused:
        Journal.open(path)
    assert refused.value.is_lasting, "to resume the run would end in the same way"
    assert "put it back from a copy" in (refused.value.hint or "")


def test_a_journal_of_another_schema_is_refused(journal: Journal) -> None:
    with sqlite3.connect(journal.path) as db:
        db.execute("PRAGMA user_version=7")
    db.close()
    with pytest.raises(JournalError, match="schema 7; this version reads 2"):
        Journal.open(journal.path)


def test_a_journal_of_the_first_schema_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, input BLOB, decisions BLOB)")
        decisions = msgspec.msgpack.encode([{"decision": "GiveBack", "instance": 0}])
        told = msgspec.msgpack.encode({"input": "Tick", "at": 1.0})
        db.execute("INSERT INTO events VALUES (0, ?, ?)", (told, decisions))
        db.execute("PRAGMA application_id=0x444F5241")
        db.execute("PRAGMA user_version=1")
    db.close()
    with pytest.raises(JournalError, match="is a journal of schema 1; this version reads 2") as refused:
        Journal.open(path)
    assert refused.value.hint == "use the version of dora-rl that wrote it"


def test_it_is_written_through_to_the_disk(journal: Journal) -> None:
    modes = [journal._db.execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous")]
    assert modes == [("wal",), (2,)]


def test_a_second_writer_is_found_out(journal: Journal) -> None:
    with Journal.open(journal.path) as other:
        admit(other, 0)
    with pytest.raises(Contradiction, match="other records than its writer believes"):
        journal.append([(Tick(at=0.0), [])])


# --- appending ---


def test_an_append_that_is_refused_leaves_nothing(journal: Journal) -> None:
    admit(journal, 0)
    bad = completed(0, 99)
    with pytest.raises(Contradiction, match="tokens from 99 on, where 4 are recorded"):
        journal.append([admission(1)], [prompt(1), progress(0, 4), bad])
    assert journal.num_inputs == 1
    assert [t.response.tokens for t in journal.unfinished()] == [(), ()]
    journal.append([admission(1)], [prompt(1), progress(0, 4)])
    assert journal.num_inputs == 2


def test_numbers_that_are_none_survive(journal: Journal) -> None:
    admit(journal, 0)
    journal.append([], [progress(0, 1), completed(0, 1)])
    reward = Rewarded(trajectory=0, attempt=0, reward=math.nan, values={"f": math.inf})
    journal.append([(Scored(at=1.0, trajectory=0, reward=math.nan), [])], [reward])
    told, _ = list(journal.events())[-1]
    assert isinstance(told, Scored)
    assert told.reward is not None
    assert math.isnan(told.reward)
    summary = next(journal.summaries())
    assert summary.reward is not None
    assert math.isnan(summary.reward)
    assert summary.values == {"f": math.inf}


@pytest.mark.parametrize(
    ("again", "message"),
    [
        (completed(0, 4), "while attempt 0 is scored"),
        (Rewarded(trajectory=0, attempt=0, reward=0.0), "while attempt 0 is scored"),
        (progress(0, 1, first=4), "while attempt 0 is scored"),
        (prompt(0), "comes after its start"),
        (progress(1, 1, attempt=1), "of attempt 1, while attempt 0"),
        (progress(50, 1), "never started"),
    ],
)
def test_a_payload_is_recorded_once_and_in_its_place(
    journal: Journal, again: AnyPayload, message: str
) -> None:
    admit(journal, 0)
    finish(journal, 0)
    with pytest.raises(Contradiction, match=message):
        journal.append([], [again])


@pytest.mark.parametrize(
    ("again", "message"),
    [
        (Admit(group=0, version=0, epoch=0, row=0), "other records"),
        (start(0, 0), "attempt 0 starts, while attempt 0 is scored"),
        (start(3, 0), "group 3 starts without having been admitted"),
        (start(1, 0, version=1), "pinned to version 0, and starts under 1"),
        (start(1, 0, version=1, attempt=1), "pinned to version 0, and starts under 1"),
        (take(0, 0), "batch 0 is not the next"),
        (take(1, 0), "was taken before"),
        (take(2, 1), "batch 2 is not the next"),
        (take(1, 1), "0 are scored and 0 closed"),
        (Close(group=2, members=(4,), outcome="failed"), "closed before"),
    ],
)
def test_a_decision_is_recorded_once_and_in_its_place(
    journal: Journal, again: Decision, message: str
) -> None:
    trained(journal, 1)
    admit(journal, 1, 2)
    decided(journal, Close(group=2, members=(4, 5), outcome="failed"))
    with pytest.raises(Contradiction, match=message):
        decided(journal, again)


@pytest.mark.parametrize("scored", [(0,), (1,), (0, 1)])
def test_a_batch_holds_groups_of_which_every_member_is_scored_or_closed(
    journal: Journal, scored: tuple[int, ...]
) -> None:
    admit(journal, 0)
    for key in scored:
        done = completed(key, 1)
        journal.append([], [progress(key, 1), done, Rewarded(trajectory=key, attempt=0, reward=1.0)])
    rest = tuple({0, 1} - set(scored))
    if rest:
        with pytest.raises(Contradiction, match="1 are scored and 0 closed"):
            decided(journal, take(0, 0))
        decided(journal, Close(group=0, members=rest, outcome="failed: environment, 3 tries"))
    decided(journal, take(0, 0))
    (batch,) = journal.batches_after(0)
    assert tuple(m.trajectory for m in batch.groups[0].members) == scored


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_version_is_published_once_and_in_its_turn(journal: Journal, version: int) -> None:
    trained(journal, 1)
    admit(journal, 1)
    finish(journal, 1)
    decided(journal, take(1, 1))
    with pytest.raises(Contradiction, match=f"version {version} is published after 1"):
        publish(journal, version)
    publish(journal, 2)
    with pytest.raises(Contradiction, match="its batch was never taken"):
        publish(journal, 3)


def test_a_prompt_of_another_length_than_control_believes_is_refused(journal: Journal) -> None:
    told, decisions = admission(0)
    wrong = [start(0, 0, prompt_tokens=7) if isinstance(d, Start) else d for d in decisions]
    with pytest.raises(Contradiction, match="has 3 tokens, not 7"):
        journal.append([(told, wrong)], [prompt(0)])


@pytest.mark.parametrize("first", [0, 6, 8])
def test_tokens_that_leave_a_gap_or_were_there_before_are_refused(journal: Journal, first: int) -> None:
    admit(journal, 0)
    journal.append([], [progress(0, 7)])
    with pytest.raises(Contradiction, match=f"tokens from {first} on, where 7 are recorded"):
        journal.append([], [progress(0, 3, first=first)])


def test_tokens_of_another_version_than_the_pinned_one_are_refused(journal: Journal) -> None:
    admit(journal, 0)
    other = Progress(trajectory=0, attempt=0, start=0, tokens=(1,), version=1, logprobs=(0.0,))
    with pytest.raises(Contradiction, match="pinned to version 0"):
        journal.append([], [other])


def test_a_group_does_not_start_without_its_prompt(journal: Journal) -> None:
    with pytest.raises(Contradiction, match="group 0 starts without its prompt"):
        journal.append([admission(0)])


def test_under_partial_a_trajectory_goes_on_under_another_version(tmp_path: Path) -> None:
    recipe = Recipe(batch=RECIPE.batch, control=Control(schedule="partial"))
    with Journal.create(tmp_path / "journal.sqlite", recipe) as journal:
        admit(journal, 0)
        journal.append([], [progress(0, 3)])
        decided(journal, start(0, 0, version=1))
        later = Progress(trajectory=0, attempt=0, start=3, tokens=(9,), version=1, logprobs=(0.0,))
        journal.append([], [later])
        found = next(journal.unfinished())
    assert found.version == 1
    assert found.response.stretches == (Stretch(start=0, version=0), Stretch(start=3, version=1))


@pytest.mark.parametrize(("version", "count"), [(0, 1), (None, 2)])
def test_every_drawn_token_and_no_other_has_a_logprob(version: int | None, count: int) -> None:
    with pytest.raises(Contradiction, match="logprobs"):
        Progress(
            trajectory=0, attempt=0, start=0, tokens=(1, 2), version=version, logprobs=(0.0,) * count
        )  # fmt: skip


# --- attempts ---


def test_a_later_attempt_begins_with_nothing_and_late_words_of_the_earlier_are_left_out(
    journal: Journal,
) -> None:
    admit(journal, 0)
    journal.append([], [progress(0, 7)])
    decided(journal, start(0, 0, attempt=1))
    journal.append([], [progress(0, 2, first=7), completed(0, 9)])
    found = next(journal.unfinished())
    assert (found.response.tokens, found.key.attempt) == ((), 1)
    with pytest.raises(Contradiction, match="attempt 0 starts, while attempt 1"):
        decided(journal, start(0, 0))


def test_a_complete_trajectory_whose_environment_failed_begins_again(journal: Journal) -> None:
    admit(journal, 0)
    journal.append([], [progress(0, 7), completed(0, 7)])
    decided(journal, start(0, 0, attempt=1))
    assert not list(journal.unscored())
    journal.append([], [progress(0, 2, attempt=1), completed(0, 2, attempt=1)])
    assert [t.response.tokens for t in journal.unscored()] == [(0, 1)]


def test_an_attempt_in_a_new_environment_begins_with_nothing_and_before_it_starts(journal: Journal) -> None:
    admit(journal, 0)
    journal.append([], [progress(0, 7)])
    decided(journal, Reopen(trajectory=0, attempt=1))
    journal.append([], [progress(0, 2, first=7), progress(0, 3, attempt=1)])
    decided(journal, start(0, 0, attempt=1, generated_tokens=3))
    found = next(journal.unfinished())
    assert (len(found.response.tokens), found.key.attempt) == (3, 1)
    with pytest.raises(Contradiction, match="attempt 1 is opened, while attempt 1"):
        decided(journal, Reopen(trajectory=0, attempt=1))


def test_a_start_of_the_same_attempt_keeps_the_tokens(journal: Journal) -> None:
    admit(journal, 0)
    journal.append([], [progress(0, 7)])
    decided(journal, start(0, 0, generated_tokens=5))
    assert len(next(journal.unfinished()).response.tokens) == 7


def test_a_closed_trajectory_keeps_its_outcome_and_nothing_else(journal: Journal) -> None:
    admit(journal, 0)
    journal.append([], [progress(0, 7)])
    decided(journal, Close(group=0, members=(0, 1), outcome="aborted: redundant"))
    journal.append([], [progress(0, 2, first=7)])
    assert not list(journal.unfinished())
    assert {s.outcome for s in journal.summaries()} == {"aborted: redundant"}
    tables = ("chunks", "responses", "prompts", "experts")
    assert [journal._db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables] == [0, 0, 0, 0]


@given(
    acts=st.lists(
        st.tuples(st.sampled_from(["drawn", "environment", "rewound", "again"]), st.integers(0, 9)),
        max_size=12,
    )
)
def test_chunks_join_to_what_was_appended(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]]
) -> None:
    tokens: list[int] = []
    writers: list[int | None] = []
    experts: list[bytes] = []
    """Of each token; none where the environment wrote it, or where what came together had none recorded."""
    attempt = 0
    with Journal.create(tmp_path_factory.mktemp("chunks") / "journal.sqlite", RECIPE) as journal:
        admit(journal, 0)
        for kind, size in acts:
            if kind == "again":
                attempt += 1
                decided(journal, start(0, 0, attempt=attempt))
                tokens, writers, experts = [], [], []
            elif kind == "rewound":
                left = max(0, len(tokens) - size)
                journal.append([], [Rewound(trajectory=0, attempt=attempt, num_tokens=left)])
                del tokens[left:], writers[left:], experts[left:]
            else:
                version = 0 if kind == "drawn" else None
                new = [len(tokens) + i for i in range(size)]
                own = written(attempt, len(tokens), new, version)
                journal.append([], [own])
                experts += own.experts or (b"",) * size
                tokens, writers = tokens + new, writers + [version] * size
        before = next(journal.unfinished()).response
        journal.append([], [completed(0, len(tokens), attempt=attempt)])
        after = next(journal.unscored()).response
    assert before == after
    assert list(after.tokens) == tokens
    drawn = [token for token, writer in zip(tokens, writers, strict=True) if writer is not None]
    assert after.logprobs == tuple(-float(t) for t in drawn)
    assert after.cut_logprobs == tuple(-t / 2 for t in drawn)
    recorded = [each for each, writer in zip(experts, writers, strict=True) if writer is not None]
    assert list(after.experts) == (recorded if any(recorded) else [])
    assert after.is_policy == tuple(writer is not None for writer in writers)
    changes = [i for i in range(len(writers)) if i == 0 or writers[i] != writers[i - 1]]
    assert after.stretches == tuple(Stretch(start=i, version=writers[i]) for i in changes)


def written(attempt: int, first: int, tokens: list[int], version: int | None) -> Progress:
    drawn = [] if version is None else tokens
    return Progress(
        trajectory=0,
        attempt=attempt,
        start=first,
        tokens=tuple(tokens),
        version=version,
        logprobs=tuple(-float(t) for t in drawn),
        cut_logprobs=tuple(-t / 2 for t in drawn),
        experts=tuple(bytes([t, first]) for t in drawn) if first % 2 else (),
    )


def test_a_journal_from_before_experts_were_recorded_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal.create(path, RECIPE) as journal:
        admit(journal, 0)
        journal._db.execute("DROP TABLE experts")
    with Journal.open(path) as journal:
        journal.append([], [written(0, 0, [], 0), written(0, 0, [5], None), written(0, 1, [6], 0)])
        journal.check()
        assert next(journal.unfinished()).response.experts == (bytes([6, 1]),)


# --- batches and checkpoints ---


def test_a_restarted_trainer_is_given_what_its_checkpoint_does_not_hold(journal: Journal) -> None:
    trained(journal, 3)
    admit(journal, 3)
    finish(journal, 3)
    decided(journal, take(3, 3))
    batches = list(journal.batches_after(1))
    assert [(b.number, b.is_published) for b in batches] == [(1, True), (2, True), (3, False)]
    (group,) = batches[0].groups
    assert [m.trajectory for m in group.members] == [2, 3]
    assert [m.reward for m in group.members] == [2.0, 3.0]
    assert group.members[0].prompt == prompt(1).tokens
    assert group.members[0].response.tokens == progress(2, 4).tokens
    assert group.members[0].values == {"f": 1.0, "g": None}
    assert group == journal.group(1)


def test_a_group_that_is_not_finished_is_not_given_out(journal: Journal) -> None:
    admit(journal, 0)
    with pytest.raises(JournalError, match="group 0 is not finished"):
        journal.group(0)
    with pytest.raises(JournalError, match="knows no group 9"):
        journal.group(9)


def test_the_batch_of_a_lost_step_is_taken_again_or_another(journal: Journal) -> None:
    admit(journal, 0, 1)
    finish(journal, 0)
    finish(journal, 1)
    decided(journal, take(0, 0))
    journal.append([(StepLost(at=1.0, reason="crash"), [take(0, 1)])])
    assert [b.groups[0].group for b in journal.batches_after(0)] == [1]
    publish(journal, 1)
    journal.append([(StepLost(at=1.0, reason="idle"), [])])
    decided(journal, take(1, 0))
    assert [b.groups[0].group for b in journal.batches_after(0)] == [1, 0]


def test_pruning_keeps_rewards_and_lengths_and_what_is_not_covered(journal: Journal) -> None:
    trained(journal, 3)
    before = list(journal.summaries())
    assert journal.prune() == 0, "nothing is covered yet"
    journal.covered(2)
    assert journal.prune() == 2
    assert journal.prune() == 0
    assert list(journal.summaries()) == before
    assert [b.number for b in journal.batches_after(2)] == [2]
    with pytest.raises(JournalError, match="batches after version 1 were given up"):
        journal.batches_after(1)
    with pytest.raises(JournalError, match="pruned"):
        journal.group(0)


def test_a_streamed_row_is_kept_until_its_batch_is_covered_or_its_group_closed(journal: Journal) -> None:
    journal.append([], [StreamedRow(row=row, content=b"row %d" % row) for row in range(4)])
    trained(journal, 2)
    admit(journal, 2, 3)
    journal.covered(1)
    journal.prune()
    decided(journal, Close(group=2, members=(4, 5), outcome="aborted: redundant"))
    assert [journal.streamed_row(row) for row in (1, 3)] == [b"row 1", b"row 3"]
    for row in (0, 2):
        with pytest.raises(JournalError, match=f"no row {row} of a stream"):
            journal.streamed_row(row)
    with pytest.raises(Contradiction):
        journal.append([], [StreamedRow(row=1, content=b"another")])


def test_a_journal_from_before_there_were_streams_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal.create(path, RECIPE) as made:
        made._db.execute("DROP TABLE streamed_rows")
    with Journal.open(path) as journal:
        trained(journal, 2)
        journal.covered(1)
        assert journal.prune() == 1


def test_pruned_space_is_used_again(journal: Journal) -> None:
    sizes = []
    for number in range(12):
        admit(journal, number)
        finish(journal, number, tokens=20_000)
        decided(journal, take(number, number))
        publish(journal, number + 1)
        journal.covered(number + 1)
        journal.prune()
        sizes.append(journal._db.execute("PRAGMA page_count").fetchone()[0])
    assert sizes[-1] < 1.1 * sizes[2]


def test_only_a_published_version_can_be_covered_and_an_earlier_one_takes_nothing_back(
    journal: Journal,
) -> None:
    trained(journal, 2)
    with pytest.raises(Contradiction, match="a checkpoint of version 3, where 2 is the newest"):
        journal.covered(3)
    journal.covered(2)
    journal.covered(1)
    assert journal.covered_step == 2


def test_an_evaluation_leaves_its_reward_and_length(journal: Journal) -> None:
    evaluation = Start(
        instance=0, version=0, trajectory=8, group=4, epoch=0, row=1, member=0, attempt=0, prompt_tokens=3,
        evaluation=True)  # fmt: skip
    journal.append([(Tick(at=0.0), [evaluation])], [prompt(4)])
    assert next(journal.unfinished()).is_evaluation
    reward = Rewarded(trajectory=8, attempt=0, reward=0.5)
    done = [progress(8, 3), completed(8, 3), reward]
    journal.append([(Tick(at=1.0), [])], done)
    (summary,) = journal.summaries()
    assert (summary.num_tokens, summary.reward, summary.is_evaluation) == (3, 0.5, True)
    with pytest.raises(JournalError, match="pruned"):
        journal.group(4)


def test_batches_stay_until_the_oldest_checkpoint_that_is_kept_covers_them(journal: Journal) -> None:
    trained(journal, 3)
    journal.covered(3, oldest=1)
    assert (journal.covered_step, journal.oldest_start) == (3, 1)
    assert journal.prune() == 1
    assert [b.number for b in journal.batches_after(1)] == [1, 2]
    with pytest.raises(JournalError, match="batches after version 0 were given up: version 1"):
        journal.batches_after(0)
    journal.covered(3, oldest=0)
    assert journal.oldest_start == 1, "what is pruned does not come back"


def test_a_journal_that_does_not_know_its_oldest_start_kept_what_the_newest_checkpoint_lacks(
    journal: Journal,
) -> None:
    trained(journal, 3)
    journal.covered(2)
    journal._db.execute("DELETE FROM settings WHERE name = 'oldest_start'")
    assert journal.oldest_start == 2


def test_metrics_of_a_step_are_recorded_once_with_its_version(journal: Journal) -> None:
    trained(journal, 1)
    with pytest.raises(Contradiction, match="metrics of version 1, which is not the next"):
        journal.append([], [StepMetrics(version=1, values={"reward": 0.5})])
    admit(journal, 1)
    finish(journal, 1)
    decided(journal, take(1, 1))
    published = Published(at=2.0, version=2, train_s=1.0)
    journal.append([(published, [])], [StepMetrics(version=2, values={"reward": None, "at": 2.0})])
    assert journal.step_metrics() == {2: {"reward": None, "at": 2.0}}


def test_a_journal_without_a_table_of_metrics_gets_one(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal.sqlite", Recipe()) as journal:
        journal._db.execute("DROP TABLE metrics")
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        assert journal.step_metrics() == {}
