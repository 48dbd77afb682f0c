"""Whatever happens in a run, its journal knows it, and gives control its state back after a crash."""

from contextlib import closing
from pathlib import Path

import pytest

from dora_rl.control.ledger import Ledger, Phase
from dora_rl.control.plane import ControlPlane
from dora_rl.control.replay import replay
from dora_rl.core.inputs import InstanceLost, StepLost
from dora_rl.core.recipe import Recipe
from dora_rl.sim.simulated_run import build_world, run_world
from dora_rl.sim.simulation_setup import complete, resolve
from dora_rl.store.journal_records import Response

from ..control.history import History
from .scribe import Member, Scribe, logprob_of

SIMULATED = (
    "batch.groups=4",
    "group_size=4",
    "gpus=8",
    "rollout_gpus=3",
    "tensor_parallel=1",
    "slots=16",
    "steps=5",
    "rows=50",
    "median_tokens=60",
    "lengths.max_tokens=400",
    "decode_floor_s=2.0",
    "mean_turns=2",
    "environment_tokens=9",
    "failure_rate=0.02",
    "instance_deaths_per_hour=1.0",
    "restart_s=20",
    "hang_share=0.3",
    "trainer_losses_per_hour=20",
)


@pytest.mark.parametrize("seed", range(16))
def test_the_journal_of_any_history_tells_what_happened(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path / "journal.sqlite")


@pytest.mark.parametrize("schedule", ["sync", "partial", "counted", "async_ratio", "dora"])
def test_the_journal_of_any_schedule_tells_what_happened(schedule: str, tmp_path: Path) -> None:
    for seed in range(1000, 1002):
        check(seed, tmp_path / f"{seed}.sqlite", schedule=schedule)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", range(10))
def test_the_journal_of_very_many_histories_tells_what_happened(block: int, tmp_path: Path) -> None:
    for seed in range(10_000 + 100 * block, 10_000 + 100 * (block + 1)):
        check(seed, tmp_path / f"{seed}.sqlite")


@pytest.mark.parametrize("schedule", ["partial", "dora"])
def test_the_journal_of_a_simulated_run_gives_control_its_state_back(schedule: str, tmp_path: Path) -> None:
    recipe = complete(resolve(assignments=[*SIMULATED, f"schedule={schedule}"]))
    world = build_world(recipe)
    scribe = Scribe(world.plane, recipe, tmp_path / "journal.sqlite")
    with closing(scribe):
        result = run_world(world)
        look(scribe, build_world(recipe).plane)
    assert len(scribe.recorded) == result.inputs
    assert scribe.published == recipe.steps
    assert any(isinstance(event, InstanceLost | StepLost) for event, _ in scribe.recorded), (
        "nothing went wrong"
    )


def check(seed: int, path: Path, **fixed: object) -> None:
    """Run a history, stop at random moments and look at a journal opened anew; and at the end."""
    history = History(seed, **fixed)
    recipe = Recipe(batch=history.batch, control=history.control, steps=history.steps, seed=seed)
    scribe = Scribe(history.plane, recipe, path)
    act, stops = history._act, set(scribe.fate.sample(range(400), 4))
    num_acts = 0

    def act_and_look(*, does_harm: bool) -> None:
        nonlocal num_acts
        act(does_harm=does_harm)
        num_acts += 1
        if num_acts in stops:
            look(scribe, History(seed, **fixed).plane)

    history._act = act_and_look  # type: ignore[method-assign]
    try:
        history.run()
        look(scribe, History(seed, **fixed).plane)
    except Exception as error:
        error.add_note(f"History({seed}, **{fixed}): {history.describe()}")
        raise
    finally:
        scribe.close()


def look(scribe: Scribe, fresh: ControlPlane) -> None:
    """A journal opened anew knows everything, and a fresh control plane gets its state from it."""
    scribe.reopen()
    assert list(scribe.journal.events()) == scribe.recorded
    assert scribe.journal.num_inputs == len(scribe.recorded)
    look_at_control(scribe, fresh)
    look_at_trajectories(scribe)
    look_at_batches(scribe)
    look_at_summaries(scribe)


def look_at_control(scribe: Scribe, fresh: ControlPlane) -> None:
    """Told the same, a fresh control plane decides the same and ends in the same state."""
    assert replay(fresh, scribe.journal.events()).difference is None
    fresh.check_integrity()
    assert state_of(fresh) == state_of(scribe.plane)


def state_of(plane: ControlPlane) -> object:
    ledger: Ledger = plane.ledger
    groups = [ledger.groups, ledger.training, ledger.evaluating]
    return (groups, ledger.outcomes, ledger.num_committed, plane.prompts.waiting, plane.prompts.is_exhausted)


def look_at_trajectories(scribe: Scribe) -> None:
    unfinished = {t.trajectory: t for t in scribe.journal.unfinished()}
    unscored = {t.trajectory: t for t in scribe.journal.unscored()}
    assert unfinished.keys() == {key for key, m in scribe.members.items() if m.state == "running"}
    assert unscored.keys() == {key for key, m in scribe.members.items() if m.state == "ended"}
    for key, found in (unfinished | unscored).items():
        member = scribe.members[key]
        start = member.start
        assert (found.version, found.is_evaluation) == (start.version, start.evaluation)
        assert found.prompt == scribe.prompts[found.group]
        assert found.key.seed == scribe.journal.recipe.seed
        places = [(k.epoch, k.row, k.member, k.attempt) for k in (found.key, start)]
        assert places[0] == places[1]
        look_at_response(found.response, member)
    running = (Phase.RUNNING, Phase.MOVING, Phase.WAITING)
    known = [t for g in scribe.plane.ledger.groups.values() for t in g.members if t.phase in running]
    for t in known:
        assert unfinished[t.id].key.attempt == t.attempt
        assert unfinished[t.id].version == t.version or scribe.journal.recipe.control.mixes_versions


def look_at_response(response: Response, member: Member) -> None:
    assert list(response.tokens) == member.tokens
    drawn = [token for token, writer in zip(member.tokens, member.writers, strict=True) if writer is not None]
    assert response.logprobs == tuple(map(logprob_of, drawn))
    assert response.is_policy == tuple(writer is not None for writer in member.writers)
    starts = [s.start for s in response.stretches]
    assert starts == sorted(set(starts))
    assert all(member.writers[s.start] == s.version for s in response.stretches)


def look_at_batches(scribe: Scribe) -> None:
    batches = list(scribe.journal.batches_after(scribe.covered))
    assert [b.number for b in batches] == [n for n in sorted(scribe.batches) if n >= scribe.covered]
    for batch in batches:
        assert tuple(g.group for g in batch.groups) == scribe.batches[batch.number]
        assert batch.is_published == (batch.number < scribe.published)
        for member in (m for group in batch.groups for m in group.members):
            truth = scribe.members[member.trajectory]
            assert truth.state == "scored"
            assert (member.reward, member.values) == truth.score
            assert member.is_truncated == truth.is_truncated
            assert member.prompt == scribe.prompts[member.group]
            look_at_response(member.response, truth)


def look_at_summaries(scribe: Scribe) -> None:
    """Pruned or not, lengths, rewards and outcomes stay."""
    summaries = {s.trajectory: s for s in scribe.journal.summaries()}
    assert summaries.keys() == scribe.members.keys() | scribe.outcomes.keys()
    assert {key: s.outcome for key, s in summaries.items() if s.outcome} == scribe.outcomes
    batch_of = {group: number for number, groups in scribe.batches.items() for group in groups}
    for key, member in scribe.members.items():
        summary = summaries[key]
        assert (summary.state, summary.batch) == (member.state, batch_of.get(summary.group))
        assert summary.num_tokens == len(member.tokens)
        assert (summary.reward, summary.values) == (member.score or (None, {}))
