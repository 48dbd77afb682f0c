"""Decisions of control are carried out, for the record only, or an error; in order, behind effects."""

from typing import Any, get_args

import pytest

from dora_rl.core import decisions as do
from dora_rl.core.decisions import AnyDecision, Decision
from dora_rl.run import received as follow
from dora_rl.run.decision_executor import RECORDS_ONLY, DecisionExecutor, UnknownDecision
from dora_rl.run.received import AnyEffect
from dora_rl.run.request_table import RequestTable

from .conftest import MakeSetup

DECIDED: tuple[Decision, ...] = (
    do.Start(
        instance=0,
        version=0,
        trajectory=4,
        group=1,
        epoch=0,
        row=0,
        member=0,
        attempt=0,
        prompt_tokens=3,
    ),
    do.Resume(instance=0, trajectory=4, appended_tokens=2),
    do.Move(trajectory=4, version=0, source=0, target=1, with_kv=True),
    do.Park(instance=0, trajectory=4),
    do.Evict(instance=0, trajectory=4),
    do.Abort(instance=0, trajectory=4, reason="closed"),
    do.Interrupt(instance=0, version=1),
    do.Open(epoch=0, row=0),
    do.Reopen(trajectory=4, attempt=1),
    do.Cut(trajectory=4, reason="deadline"),
    do.Load(instance=0, version=1),
    do.Drop(instance=0, version=0),
    do.Lend(instance=0),
    do.Return(instance=0),
    do.Restart(instance=0, reason="silent"),
    do.Admit(group=1, version=0, epoch=0, row=0),
    do.Hand(batch=0, group=1),
    do.Take(batch=0, groups=(1,), staleness=(0,)),
    do.Close(group=1, members=(4,), outcome="filtered"),
    do.Retire(version=0),
    do.Wait(reason="starved"),
    do.Skip(version=1, reason="target"),
    do.Finish(),
)


class Recorder:
    """Stands for every part that is told something, and writes down what."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def note(*arguments: Any, **named: Any) -> Any:
            self.told.append(name)
            return True

        return note

    def __getitem__(self, row: int) -> Any:
        return self

    token_ids = (1, 2, 3)


def make_executor(make_setup: MakeSetup, *, has_episodes: bool = True) -> tuple[DecisionExecutor, list[str]]:
    recorder: Any = Recorder()
    executor = DecisionExecutor(
        make_setup(),
        recorder,
        recorder,
        inbox=recorder,
        instances=recorder,
        requests=RequestTable(),
        moves=recorder,
        trainer=recorder,
        rewards=recorder,
        episodes=recorder if has_episodes else None,
    )
    return executor, recorder.told


def test_there_is_an_example_of_every_decision() -> None:
    assert {type(decision) for decision in DECIDED} == set(get_args(AnyDecision))


@pytest.mark.parametrize("decision", DECIDED, ids=lambda decision: type(decision).__name__)
def test_a_decision_is_carried_out_or_for_the_record_or_an_error(
    make_setup: MakeSetup, decision: Decision
) -> None:
    executor, told = make_executor(make_setup)
    if isinstance(decision, do.Abort | do.Resume | do.Evict | do.Park):
        executor.carry_out((), DECIDED[:1])  # Something to abort or to go on with.
        told.clear()
    if isinstance(decision, do.Park):
        executor.carry_out((), [decision])
        assert not told, "what decodes is not parked on command"
        placed = executor._requests.of(decision.trajectory)
        assert placed is not None
        placed.is_held = True
    executor.carry_out((), [decision])
    assert bool(told) is not isinstance(decision, RECORDS_ONLY)


@pytest.mark.parametrize("decision", [do.Park(instance=0, trajectory=4), do.Evict(instance=0, trajectory=4)])
def test_what_is_of_turns_is_an_error_where_there_are_none(make_setup: MakeSetup, decision: Decision) -> None:
    executor, _ = make_executor(make_setup, has_episodes=False)
    with pytest.raises(UnknownDecision, match=f"cannot carry out {type(decision).__name__}"):
        executor.carry_out((), [decision])


def test_effects_and_then_decisions_are_carried_out_in_their_order(make_setup: MakeSetup) -> None:
    executor, told = make_executor(make_setup)
    effects: list[AnyEffect] = [
        follow.ServeStore(),
        follow.RecordStep(is_checkpoint_due=True),
        follow.CoverBatches(version=1, oldest=1),
    ]
    take = do.Take(batch=1, groups=(1,), staleness=(0,))
    executor.carry_out(effects, [do.Hand(batch=1, group=1), take, do.Lend(instance=0)])
    assert told == ["serve_store", "step_recorded", "covered", "prune", "hand", "take", "send"]


def test_every_effect_is_carried_out(make_setup: MakeSetup) -> None:
    executor, _ = make_executor(make_setup)
    assert set(executor._effects) == set(get_args(AnyEffect))
