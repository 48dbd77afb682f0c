"""The controllers for R and S, each alone in a loop with a plant that answers late."""

from collections import deque
from itertools import pairwise
from statistics import fmean

import pytest

from dora_rl.control.durations import Durations
from dora_rl.control.estimates import Estimates, LearnedLengths
from dora_rl.control.fleet import Fleet
from dora_rl.control.group_rounds import GroupRounds
from dora_rl.control.target import StalenessTarget, Target
from dora_rl.control.window import Window

BATCH = 32
COST = 0.02


def make_target(*, max_staleness: int = 5, fixed: int | None = None) -> Target:
    window = Window(batch_groups=BATCH, max_staleness=max_staleness)
    window.newest = 2  # The first batch says nothing.
    lengths = LearnedLengths(prior_tokens=10, max_tokens=100)
    return Target(
        window=window,
        fleet=Fleet(watermark=0.95),
        durations=Durations(),
        rounds=GroupRounds(),
        estimates=Estimates(lengths=lengths, load_s=1.0, move_s=1.0, step_s=0.1),
        group_size=4,
        freshness_cost=COST,
        fixed=fixed,
    )


class Plant:
    """A run that loses time by missing groups, or by too many; a change of R takes a while to matter."""

    def __init__(
        self, *, unfinished: int, start: int, most: int = 10_000, full: int = 10_000, max_staleness: int = 5
    ) -> None:
        self.target = make_target(max_staleness=max_staleness)
        self.target.groups = start
        self.needed = BATCH + unfinished
        self.most = most
        """Active groups beyond which the window stalls."""
        self.full = full
        """Active groups that fill all instances."""
        self.recent = deque([start] * 3, maxlen=3)
        self.now = 0.0
        self.losses: list[float] = []

    def publish(self) -> int:
        active = self.recent[0]
        self.now += 1.0
        self.target.noted(self.now, is_binding=active < self.full)
        missing, stalled = max(0, self.needed - active), max(0, active - self.most)
        self.losses.append(missing / BATCH if active < self.full else 0.0)
        self.target.published(
            self.now, interval_s=1.0, starved_share=missing / BATCH, stalled_share=stalled / BATCH
        )
        self.recent.append(self.target.groups)
        return self.target.groups


@pytest.mark.parametrize("start", [BATCH, 2 * BATCH, 6 * BATCH])
@pytest.mark.parametrize("unfinished", [0, 20, 64, 100])
def test_r_comes_to_rest_where_little_is_lost(unfinished: int, start: int) -> None:
    plant = Plant(unfinished=unfinished, start=start)
    path = [plant.publish() for _ in range(400)]
    settled = path[250:]
    assert plant.needed - 4 <= min(settled), f"the trainer starves: {settled}"
    assert max(settled) <= plant.needed + 4, f"staler than it must be: {settled}"
    assert fmean(plant.losses[250:]) <= 2 * COST


def test_r_does_not_swing_between_starving_and_stalling() -> None:
    """Both are lost where the window stalls before the trainer has enough: R rests between the two."""
    plant = Plant(unfinished=40, start=BATCH, most=BATCH + 30)
    path = [plant.publish() for _ in range(300)]
    assert max(path[150:]) - min(path[150:]) <= BATCH // 4, path[150:]
    assert BATCH + 28 <= fmean(path[150:]) <= BATCH + 42


def test_r_is_raised_within_a_few_steps() -> None:
    plant = Plant(unfinished=64, start=BATCH)
    path = [plant.publish() for _ in range(30)]
    assert max(path) >= plant.needed - 4, path
    assert all(b > a for a, b in pairwise(path[:15])), path


def test_r_stays_between_a_batch_and_what_the_window_can_hold() -> None:
    for unfinished in (0, 10_000):
        plant = Plant(unfinished=unfinished, start=2 * BATCH, max_staleness=2)
        path = [plant.publish() for _ in range(60)]
        assert all(BATCH <= groups <= 3 * BATCH for groups in path)
    assert path[-1] == 3 * BATCH


def test_r_is_not_raised_where_instances_are_full() -> None:
    """The trainer starves, but more active groups would not help: the fewest that fill the instances do."""
    plant = Plant(unfinished=1000, start=3 * BATCH, full=2 * BATCH)
    path = [plant.publish() for _ in range(200)]
    assert all(b <= a for a, b in pairwise(path[:30])), path[:30]
    assert 2 * BATCH - 8 <= min(path[100:]) <= max(path[100:]) <= 2 * BATCH + 8, path[100:]


def test_a_fixed_r_is_never_changed() -> None:
    target = make_target(fixed=40)
    for share in (0.0, 0.5):
        target.published(1.0, interval_s=1.0, starved_share=share, stalled_share=share)
    assert target.groups == 40


def test_s_is_raised_by_stalls_and_never_above_its_limit() -> None:
    window = Window(batch_groups=4, max_staleness=3)
    controller = StalenessTarget(window=window, limit=3)
    window.max_staleness = 1
    for _ in range(5):
        controller.published(stall_share=0.1, oldest_taken=1)
    assert window.max_staleness == 3


def test_s_is_lowered_after_a_calm_while_and_not_below_what_is_used() -> None:
    window = Window(batch_groups=4, max_staleness=3)
    controller = StalenessTarget(window=window, limit=3)
    seen = []
    for _ in range(20):
        controller.published(stall_share=0.0, oldest_taken=1)
        seen.append(window.max_staleness)
    assert seen[2] == 3, "not at once"
    assert seen[-1] == 1


def test_s_is_not_lowered_while_a_deadline_would_be_missed() -> None:
    window = Window(batch_groups=1, max_staleness=2)
    for _ in range(3):
        window.admit(0)
    controller = StalenessTarget(window=window, limit=2)
    for _ in range(10):
        controller.published(stall_share=0.0, oldest_taken=0)
    assert window.max_staleness == 2
