"""Which trajectories a reward function sees together, however they end and whenever a run is cut short."""

from pathlib import Path
from typing import Any

import pytest

from dora_rl.control.ledger import Ledger, Phase
from dora_rl.core.inputs import QueuedPrompt, Scored
from dora_rl.core.recipe import Batch
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.launch.local import LOCAL
from dora_rl.run.prompt_table import PromptTable, RunPrompts
from dora_rl.run.received import ScoreTrajectory
from dora_rl.run.rewards.queue import RewardQueue
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.worker_deaths import WorkerDeaths

from ..envs.scored import USER
from .conftest import MakeSetup, staged
from .pooled import scoring


class _Window:
    newest = 1


class _Plane:
    """As much of control as the queue asks: the ledger, and how far the run is."""

    def __init__(self) -> None:
        self.ledger = Ledger(group_size=3)
        self.window = _Window()
        self.steps = 4


class _Unmeasured:
    def judged(self, judgement: Any) -> None:
        """Nobody counts."""


class Queued:
    """A queue with a function that ranks what it sees, in a run whose ledger the test writes."""

    def __init__(self, make_setup: MakeSetup, tmp_path: Path) -> None:
        inputs = LiveLayout(root=staged(make_setup()))
        inputs.logs.mkdir()
        self.plane: Any = _Plane()
        metrics: Any = _Unmeasured()
        journal: Any = None  # It is asked for rows of a stream only.
        self.queue = RewardQueue(
            scoring(RewardConfig(function=f"{USER}:rank")),
            RunPrompts(PromptTable.read(inputs.prompts), journal),
            inputs,
            self.plane,
            WorkerDeaths(3, tmp_path / "book"),
            metrics,
            launch=LOCAL,
            batch=Batch(groups=2, group_size=3),
        )

    def ask(self, trajectory: int, group: int, row: int, length: int) -> None:
        tokens = (20,) * length
        self.queue.ask(ScoreTrajectory(trajectory=trajectory, group=group, row=row, attempt=0, tokens=tokens))

    def rewards(self, count: int) -> dict[int, float | None]:
        found: dict[int, float | None] = {}
        while len(found) < count:
            self.queue.pool.wait_ready()
            for told in self.queue.read(0.0).inputs:
                assert isinstance(told, Scored)
                found[told.trajectory] = told.reward
        return found


@pytest.fixture
def queued(make_setup: MakeSetup, tmp_path: Path) -> Any:
    made = Queued(make_setup, tmp_path)
    yield made
    made.queue.close()


def test_members_that_end_in_the_same_moment_are_compared_with_each_other(queued: Queued) -> None:
    group = queued.plane.ledger.admit(QueuedPrompt(epoch=0, row=0, tokens=1), 0)
    for member in group.members:
        member.phase = Phase.ENDED
    for number, length in enumerate((5, 3, 4)):
        queued.ask(number, group.id, 0, length)
    assert queued.rewards(3) == {0: 2.0, 1: 0.0, 2: 1.0}


def test_samples_of_a_held_out_row_are_compared_with_each_other_and_not_with_another_version(
    queued: Queued,
) -> None:
    row = 64
    ledger = queued.plane.ledger
    groups = [ledger.evaluate(QueuedPrompt(epoch=sample, row=row, tokens=1), 0) for sample in range(3)]
    later = ledger.evaluate(QueuedPrompt(epoch=0, row=row, tokens=1), 1)
    for group in (*groups[:2], later):
        group.members[0].phase = Phase.ENDED
    queued.ask(later.id * 3, later.id, row, 9)
    queued.ask(groups[0].id * 3, groups[0].id, row, 5)
    queued.ask(groups[1].id * 3, groups[1].id, row, 3)
    assert queued.rewards(1) == {9: 0.0}
    # The third fails for good: the others wait for it no longer.
    ledger.forget(groups[2])
    queued.queue.look_at(groups[2].id * 3, groups[2].id)
    assert queued.rewards(2) == {0: 1.0, 3: 0.0}


def test_a_trajectory_that_was_closed_meanwhile_is_not_judged(queued: Queued) -> None:
    group = queued.plane.ledger.admit(QueuedPrompt(epoch=0, row=0, tokens=1), 0)
    group.members[0].phase = Phase.CLOSED
    queued.ask(0, group.id, 0, 5)
    assert queued.queue.pool.num_pending == 0
