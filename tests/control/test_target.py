"""The controllers for R and S, each alone in a loop with a plant that answers late."""

from collections import deque
from itertools import pairwise

import pytest

from dora_rl.control.target import StalenessTarget, Target
from dora_rl.control.window import Window

BATCH = 32


def finished_groups(window: Window, count: int) -> None:
    window.num_finished = count


class Plant:
    """A run in which `unfinished` groups are under way at every publish, and R takes a while to matter."""

    def __init__(self, *, unfinished: int, start: int, max_staleness: int = 5) -> None:
        self.window = Window(batch_groups=BATCH, max_staleness=max_staleness)
        self.target = Target(window=self.window, fixed=None)
        self.target.groups = start
        self.unfinished = unfinished
        self.recent = deque([start] * 3, maxlen=3)

    def publish(self) -> int:
        active = self.recent[0]
        finished = max(0, active - self.unfinished)
        finished_groups(self.window, finished)
        self.target.reached()
        self.target.published(was_starved=finished < BATCH)
        self.recent.append(self.target.groups)
        return self.target.groups


@pytest.mark.parametrize("start", [BATCH, 2 * BATCH, 6 * BATCH])
@pytest.mark.parametrize("unfinished", [0, 20, 64, 100])
def test_r_finds_the_smallest_that_starves_nobody_and_stays(unfinished: int, start: int) -> None:
    plant = Plant(unfinished=unfinished, start=start)
    path = [plant.publish() for _ in range(60)]
    needed = BATCH + unfinished
    settled = path[30:]
    assert min(settled) >= needed, "somebody starves"
    assert max(settled) <= needed + BATCH // 4, "more than needed"
    assert len(set(settled)) == 1, f"it does not rest: {path}"
    turns = [b - a for a, b in pairwise(path) if a != b]
    assert sum(a * b < 0 for a, b in pairwise(turns)) <= 1, f"it oscillates: {path}"


def test_r_is_raised_within_a_few_steps() -> None:
    plant = Plant(unfinished=64, start=BATCH)
    path = [plant.publish() for _ in range(10)]
    assert path[-1] >= BATCH + 64


def test_r_stays_between_a_batch_and_what_the_window_can_hold() -> None:
    for unfinished in (0, 10_000):
        plant = Plant(unfinished=unfinished, start=2 * BATCH, max_staleness=2)
        path = [plant.publish() for _ in range(40)]
        assert all(BATCH <= groups <= 3 * BATCH for groups in path)


def test_r_is_not_raised_where_it_holds_nothing_back() -> None:
    """The instances are full, or the window is: more active groups would not help."""
    window = Window(batch_groups=BATCH, max_staleness=3)
    target = Target(window=window, fixed=None)
    before = target.groups
    for _ in range(10):
        target.published(was_starved=True)
    assert target.groups == before


def test_a_fixed_r_is_never_changed() -> None:
    window = Window(batch_groups=BATCH, max_staleness=3)
    target = Target(window=window, fixed=40)
    for finished in (0, 100):
        finished_groups(window, finished)
        target.reached()
        target.published(was_starved=True)
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
