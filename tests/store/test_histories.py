"""Whatever happens in a run, its journal knows it, and gives control its state back after a crash."""

from pathlib import Path

import pytest

from dora_rl.control.ledger import Ledger, Phase
from dora_rl.control.plane import ControlPlane
from dora_rl.control.replay import replay
from dora_rl.store.records import Response

from .scribe import JournalledHistory, Member, fresh_plane, logprob_of


@pytest.mark.parametrize("seed", range(16))
def test_the_journal_of_any_history_tells_what_happened(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path / "journal.sqlite")


@pytest.mark.parametrize("schedule", ["sync", "partial", "async_ratio", "dora"])
def test_the_journal_of_any_schedule_tells_what_happened(schedule: str, tmp_path: Path) -> None:
    for seed in range(1000, 1002):
        check(seed, tmp_path / f"{seed}.sqlite", schedule=schedule)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", range(10))
def test_the_journal_of_very_many_histories_tells_what_happened(block: int, tmp_path: Path) -> None:
    for seed in range(10_000 + 100 * block, 10_000 + 100 * (block + 1)):
        check(seed, tmp_path / f"{seed}.sqlite")


def check(seed: int, path: Path, **fixed: object) -> None:
    """Run a history, stop at random moments and look at a journal opened anew; and at the end."""
    history = JournalledHistory(seed, path, **fixed)
    act, stops = history._act, set(history.fate.sample(range(400), 4))
    num_acts = 0

    def act_and_look(*, does_harm: bool) -> None:
        nonlocal num_acts
        act(does_harm=does_harm)
        num_acts += 1
        if num_acts in stops:
            look(history, **fixed)

    history._act = act_and_look  # type: ignore[method-assign]
    try:
        history.run()
        look(history, **fixed)
    except Exception as error:
        error.add_note(f"JournalledHistory({seed}, **{fixed}): {history.describe()}")
        raise
    finally:
        history.journal.close()


def look(history: JournalledHistory, **fixed: object) -> None:
    history.reopen()
    assert list(history.journal.events()) == history.recorded
    assert history.journal.num_inputs == len(history.recorded)
    look_at_control(history, **fixed)
    look_at_trajectories(history)
    look_at_batches(history)
    look_at_summaries(history)


def look_at_control(history: JournalledHistory, **fixed: object) -> None:
    """Told the same, a fresh control plane decides the same and ends in the same state."""
    plane = fresh_plane(history.seed, **fixed)
    assert replay(plane, history.journal.events()).difference is None
    plane.check_integrity()
    assert state_of(plane) == state_of(history.plane)


def state_of(plane: ControlPlane) -> object:
    ledger: Ledger = plane.ledger
    groups = [ledger.groups, ledger.training, ledger.evaluating]
    return (groups, ledger.outcomes, ledger.num_committed, plane.prompts.epoch, plane.prompts.position)


def look_at_trajectories(history: JournalledHistory) -> None:
    unfinished = {t.trajectory: t for t in history.journal.unfinished()}
    unscored = {t.trajectory: t for t in history.journal.unscored()}
    assert unfinished.keys() == {key for key, m in history.members.items() if m.state == "running"}
    assert unscored.keys() == {key for key, m in history.members.items() if m.state == "ended"}
    for key, found in (unfinished | unscored).items():
        member = history.members[key]
        start = member.start
        assert (found.version, found.is_evaluation) == (start.version, start.evaluation)
        assert found.prompt == history.prompts[found.group]
        assert found.key.seed == history.seed
        places = [(k.epoch, k.row, k.member, k.attempt) for k in (found.key, start)]
        assert places[0] == places[1]
        look_at_response(found.response, member)
    running = (Phase.RUNNING, Phase.MOVING, Phase.WAITING)
    known = [t for g in history.plane.ledger.groups.values() for t in g.members if t.phase in running]
    for t in known:
        assert unfinished[t.id].key.attempt == t.attempt
        assert unfinished[t.id].version == t.version or history.control.schedule == "partial"


def look_at_response(response: Response, member: Member) -> None:
    assert list(response.tokens) == member.tokens
    drawn = [token for token, writer in zip(member.tokens, member.writers, strict=True) if writer is not None]
    assert response.logprobs == tuple(map(logprob_of, drawn))
    assert response.is_policy == tuple(writer is not None for writer in member.writers)
    starts = [s.start for s in response.stretches]
    assert starts == sorted(set(starts))
    assert all(member.writers[s.start] == s.version for s in response.stretches)


def look_at_batches(history: JournalledHistory) -> None:
    batches = list(history.journal.batches_after(history.covered))
    assert [b.number for b in batches] == [n for n in sorted(history.batches) if n >= history.covered]
    for batch in batches:
        assert tuple(g.group for g in batch.groups) == history.batches[batch.number]
        assert batch.is_published == (batch.number < history.published)
        for member in (m for group in batch.groups for m in group.members):
            truth = history.members[member.trajectory]
            assert truth.state == "scored"
            assert (member.reward, member.values) == truth.score
            assert member.is_truncated == truth.is_truncated
            assert member.prompt == history.prompts[member.group]
            look_at_response(member.response, truth)


def look_at_summaries(history: JournalledHistory) -> None:
    """Pruned or not, lengths, rewards and outcomes stay."""
    summaries = {s.trajectory: s for s in history.journal.summaries()}
    assert summaries.keys() == history.members.keys() | history.outcomes.keys()
    assert {key: s.outcome for key, s in summaries.items() if s.outcome} == history.outcomes
    batch_of = {group: number for number, groups in history.batches.items() for group in groups}
    for key, member in history.members.items():
        summary = summaries[key]
        assert (summary.state, summary.batch) == (member.state, batch_of.get(summary.group))
        assert summary.num_tokens == len(member.tokens)
        assert (summary.reward, summary.values) == (member.score or (None, {}))
