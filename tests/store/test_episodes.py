"""The journal of episodes: branches, turns, side effects, and contexts before a group is admitted."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dora_rl.core.decisions import Close, Decision, Reopen, Take
from dora_rl.core.inputs import Published, Tick
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.store.errors import Contradiction, JournalDamaged
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import (
    AnyPayload,
    EarlyOnce,
    EpisodeContexts,
    EpisodeOver,
    JournalledTrajectory,
    OnceValue,
    Progress,
    Rewarded,
    Rewound,
    TurnFinished,
    TurnReward,
)

from ..run.sql_verdict import violations
from .appends import RECIPE, admission, prompt, start

EPISODIC = replace(RECIPE, episode=EpisodeSettings(function="envs.py:guess"))
FORK, AGENT = 77, 3_000_000_000
TABLES = ("branch_chunks", "turns", "onces", "contexts")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.create(tmp_path / "journal.sqlite", EPISODIC) as made:
        yield made


def said(start: int, *tokens: int, branch: int = 0, is_trained: bool = True, trajectory: int = 0) -> Progress:
    """What an environment appended."""
    return Progress(
        trajectory=trajectory, attempt=0, start=start, tokens=tokens, version=None, branch=branch,
        is_trained=is_trained)  # fmt: skip


def drew(start: int, *tokens: int, branch: int = 0, trajectory: int = 0, version: int = 0) -> Progress:
    """What the policy drew."""
    return Progress(
        trajectory=trajectory, attempt=0, start=start, tokens=tokens, version=version, branch=branch,
        logprobs=(-0.5,) * len(tokens))  # fmt: skip


def turn(branch: int = 0, *, finish: str = "stop", trajectory: int = 0, attempt: int = 0) -> TurnFinished:
    return TurnFinished(trajectory=trajectory, attempt=attempt, branch=branch, finish=finish)  # type: ignore[arg-type]


def once(number: int, value: bytes, *, branch: int = 0, attempt: int = 0) -> OnceValue:
    return OnceValue(trajectory=0, attempt=attempt, branch=branch, number=number, key="pay", value=value)


def over(trajectory: int = 0, *, is_truncated: bool = False) -> EpisodeOver:
    return EpisodeOver(trajectory=trajectory, attempt=0, is_truncated=is_truncated)


def played() -> list[AnyPayload]:
    """An episode of three branches: two turns of the first around one of a fork, and an untrained one."""
    return [
        said(0, 30, 31),
        drew(2, 40),
        drew(3, 41),
        turn(),
        once(1, b"\x00paid"),
        said(0, 1, 2, 30, 40, branch=FORK),
        drew(4, 50, 51, branch=FORK),
        turn(FORK, finish="length"),
        said(0, 9, branch=AGENT, is_trained=False),
        drew(1, 60, branch=AGENT),
        turn(AGENT),
        said(4, 32),
        drew(5, 42),
        turn(),
    ]


def admitted(journal: Journal, group: int = 0) -> None:
    journal.append([admission(group)], [prompt(group)])


def decided(journal: Journal, *decisions: Decision) -> None:
    journal.append([(Tick(at=1.0), list(decisions))])


def rows(journal: Journal) -> dict[str, int]:
    return {name: journal._db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES}


def is_as_played(found: JournalledTrajectory) -> None:
    root, fork, agent = found.every_branch
    assert (root.number, fork.number, agent.number) == (0, FORK, AGENT)
    assert root.response == found.response
    assert root.response.tokens == (30, 31, 40, 41, 32, 42)
    assert root.response.versions == (None, None, 0, 0, None, 0)
    assert fork.response.tokens == (1, 2, 30, 40, 50, 51)
    assert fork.response.is_policy == (False, False, False, False, True, True)
    assert fork.response.logprobs == (-0.5, -0.5)
    assert (root.is_trained, fork.is_trained, agent.is_trained) == (True, True, False)
    assert [[each.finish for each in branch.turns] for branch in found.every_branch] == [
        ["stop", "stop"],
        ["length"],
        ["stop"],
    ]
    assert [[each.order for each in branch.turns] for branch in found.every_branch] == [[0, 3], [1], [2]]
    assert found.onces == (once(1, b"\x00paid"),)


def test_an_episode_is_given_back_as_it_was_played_while_it_is_and_after(journal: Journal) -> None:
    admitted(journal)
    for payload in played():
        journal.append([], [payload])
    path = journal.path
    journal.close()
    with Journal.open(path) as again:
        is_as_played(next(again.unfinished()))
        again.append([], [over(is_truncated=True)])
        (ended,) = again.unscored()
        is_as_played(ended)
        assert ended.is_truncated
        again.check()


def test_a_batch_has_the_branches_and_what_each_turn_gave(journal: Journal) -> None:
    admitted(journal)
    rewards = (TurnReward(branch=FORK, turn=0, reward=0.25), TurnReward(branch=0, turn=1, reward=-1.5))
    journal.append([], [*played(), over(), said(0, 5, trajectory=1), drew(1, 6, trajectory=1), over(1)])
    journal.append([], [
        Rewarded(trajectory=0, attempt=0, reward=2.0, turns=rewards),
        Rewarded(trajectory=1, attempt=0, reward=0.0),
    ])  # fmt: skip
    decided(journal, Take(batch=0, groups=(0,), staleness=(0,)))
    (batch,) = journal.batches_after(0)
    first, second = batch.groups[0].members
    is_as_played(first)
    assert [[each.reward for each in branch.turns] for branch in first.every_branch] == [
        [None, -1.5],
        [0.25],
        [None],
    ]
    assert second.branches == second.turns == second.onces == ()


@pytest.mark.parametrize(
    ("statement", "law"),
    [
        ("SELECT 1", None),
        ("DELETE FROM turns WHERE number = 1", "not numbered through"),
        ("DELETE FROM turns WHERE number >= 2", "trajectory 0 has 2 turns without an end"),
        (
            "UPDATE turns SET branch = 4 WHERE number = 3",
            "has 1 turns more than stretches",
        ),
        ("UPDATE branch_chunks SET version = 1 WHERE start = 4", "was drawn by 1"),
        ("UPDATE branch_chunks SET start = 5 WHERE start = 4", "has a gap at 5"),
        ("UPDATE branch_chunks SET tokens = x'00' WHERE start = 4", "1 bytes of tokens"),
        ("DELETE FROM branch_chunks WHERE branch = 77 AND start = 0", "begins with tokens that were drawn"),
        ("UPDATE onces SET trajectory = 9", "rows of onces are of trajectories without tokens"),
    ],
)
def test_the_verdict_by_sql_sees_branches_and_turns_out_of_place(
    journal: Journal, statement: str, law: str | None
) -> None:
    admitted(journal)
    journal.append([], [*played(), over(), said(0, 5, trajectory=1), drew(1, 6, trajectory=1), over(1)])
    with sqlite3.connect(journal.path) as db:
        db.create_function("row_sum", -1, lambda *values: 0, deterministic=True)
        db.execute(statement)
    db.close()
    found = violations(journal.path, is_complete=False)
    assert not found if law is None else any(law in each for each in found), found


def test_what_only_episodes_have_goes_with_their_tokens(journal: Journal) -> None:
    admitted(journal)
    journal.append([], [*played(), over(), said(0, 5, trajectory=1), drew(1, 6, trajectory=1), over(1)])
    journal.append([], [Rewarded(trajectory=key, attempt=0, reward=1.0) for key in (0, 1)])
    decided(journal, Take(batch=0, groups=(0,), staleness=(0,)))
    journal.append([(Published(at=2.0, version=1, train_s=1.0), [])])
    admitted(journal, 1)
    journal.append([], [
        said(0, 7, branch=5, trajectory=2), turn(5, trajectory=2), said(0, 7, branch=5, trajectory=3)
    ])  # fmt: skip
    journal.covered(1)
    assert journal.prune() == 1
    assert rows(journal) == {"branch_chunks": 2, "turns": 1, "onces": 0, "contexts": 0}
    decided(journal, Close(group=1, outcome="failed", members=(2, 3)))
    assert set(rows(journal).values()) == {0}


def test_the_next_attempt_begins_with_nothing_and_late_words_of_the_earlier_are_left_out(
    journal: Journal,
) -> None:
    admitted(journal)
    journal.append([], played())
    decided(journal, Reopen(trajectory=0, attempt=1))
    journal.append([], [turn(), once(9, b"late"), over(), said(6, 1)])
    found = next(journal.unfinished())
    assert (found.turns, found.branches, found.onces, found.response.tokens) == ((), (), (), ())
    journal.append([], [once(0, b"again", attempt=1)])
    assert next(journal.unfinished()).onces == (once(0, b"again", attempt=1),)


def test_an_evaluated_episode_leaves_its_reward(journal: Journal) -> None:
    decision = start(4, 0, evaluation=True)
    journal.append([(Tick(at=0.0), [decision])], [prompt(4)])
    played_there = [replace(each, trajectory=8) for each in played()]
    journal.append([], [*played_there, over(8)])
    journal.append([], [Rewarded(trajectory=8, attempt=0, reward=1.0)])
    assert set(rows(journal).values()) == {0}
    (summary,) = journal.summaries()
    assert summary.reward == 1.0


def test_contexts_are_kept_until_the_prompt_is_admitted(journal: Journal) -> None:
    first = EpisodeContexts(epoch=0, row=0, contexts=((1, 2, 3), (1, 2, 4, 5)))
    early = EarlyOnce(branch=77, number=0, key="role user", value=b"hi")
    second = EpisodeContexts(epoch=0, row=1, contexts=((6,), (7,)), onces=((early,), ()))
    evaluated = EpisodeContexts(epoch=0, row=0, contexts=((8,),), is_evaluation=True)
    journal.append([], [first, second, evaluated, evaluated])
    assert journal.opened() == (first, second, evaluated, evaluated)
    admitted(journal)
    assert journal.opened() == (second, evaluated, evaluated)
    journal.append([(Tick(at=0.0), [replace(start(4, 0, evaluation=True), row=0)])], [prompt(4)])
    assert journal.opened() == (second, evaluated)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (said(5, 1, branch=FORK), "tokens of branch 77 from 5 on, where 6 are recorded"),
        (said(1, 1, branch=4), "tokens of branch 4 from 1 on, where 0 are recorded"),
        (drew(0, 1, branch=4), "branch 4 begins with its context"),
        (replace(drew(6, 1, branch=FORK), is_last=True), "ends with its episode"),
        (drew(6, 1, branch=FORK, version=1), "pinned to version 0"),
        (once(1, b"twice"), "other records"),
        (Rewound(trajectory=0, attempt=0, num_tokens=1), "turns that were taken stay"),
        (turn(attempt=1), "while attempt 0 is running"),
        (Rewarded(trajectory=0, attempt=0, reward=1.0), "while attempt 0 is running"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    journal: Journal, payload: AnyPayload, message: str
) -> None:
    admitted(journal)
    journal.append([], played())
    with pytest.raises(Contradiction, match=message):
        journal.append([], [payload])
    is_as_played(next(journal.unfinished()))


@pytest.mark.parametrize("turns", [((0, 2),), ((5, 0),), ((0, 0), (0, 0))])
def test_rewards_of_turns_that_were_never_taken_are_refused(
    journal: Journal, turns: tuple[tuple[int, int], ...]
) -> None:
    admitted(journal)
    journal.append([], [*played(), over()])
    given = tuple(TurnReward(branch=branch, turn=number, reward=1.0) for branch, number in turns)
    with pytest.raises(Contradiction, match="rewards of the turns"):
        journal.append([], [Rewarded(trajectory=0, attempt=0, reward=1.0, turns=given)])


def test_the_first_branch_is_always_trained_on() -> None:
    with pytest.raises(Contradiction, match="first branch"):
        said(0, 1, is_trained=False)


def test_a_journal_without_episodes_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal.create(path, RECIPE) as journal:
        admitted(journal)
        assert journal.opened() == ()
        found = journal._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        assert not {name for (name,) in found} & set(TABLES)
        assert journal._db.execute("PRAGMA user_version").fetchone() == (3,)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE branch_chunks SET is_trained = 1 WHERE branch = 3000000000",
        "UPDATE turns SET branch = 0 WHERE number = 2",
        "UPDATE onces SET value = x'00'",
        "UPDATE contexts SET row = 4",
    ],
)
def test_a_row_that_another_program_changed_is_noticed(journal: Journal, statement: str) -> None:
    admitted(journal)
    opened = EpisodeContexts(epoch=0, row=1, contexts=((1, 2, 3), (1, 2, 4, 5)))
    journal.append([], [*played(), opened])
    journal.check()
    with sqlite3.connect(journal.path) as db:
        db.create_function("row_sum", -1, lambda *values: 0, deterministic=True)
        assert db.execute(statement).rowcount
    db.close()
    with pytest.raises(JournalDamaged, match="changed after"):
        journal.check()
