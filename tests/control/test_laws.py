"""Laws 1 to 4 over random histories: lengths, timings, orders of messages, faults, schedules.

Each history builds a small run at random and lets fate drive it (`history.py`) against an executor
with its own truth (`fake_executor.py`). The executor refuses decisions that make no sense; the audit
sees only inputs and decisions; `check_integrity` looks at control's books. At the end the run must
have trained exactly N steps of exactly B groups, with nothing lost and nothing twice.
"""

import pytest

from dora_rl.core.decisions import Decision

from .history import SCHEDULES, History
from .role_executor import RoleExecutor

HISTORIES = 1200
BLOCKS = 24
EPISODE_HISTORIES = 240
EPISODE_BLOCKS = 8
ROLE_HISTORIES = 120
ROLE_BLOCKS = 4


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_laws_hold_in_every_history(block: int) -> None:
    size = HISTORIES // BLOCKS
    for seed in range(block * size, (block + 1) * size):
        run(seed)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_laws_hold_under_every_schedule(schedule: str) -> None:
    for seed in range(10_000, 10_050):
        run(seed, schedule=schedule)


@pytest.mark.parametrize("block", range(EPISODE_BLOCKS))
def test_the_laws_hold_for_episodes(block: int) -> None:
    size = EPISODE_HISTORIES // EPISODE_BLOCKS
    seeds = range(40_000 + block * size, 40_000 + (block + 1) * size)
    histories = [run(seed, is_episodic=True) for seed in seeds]
    assert sum(history.executor.num_rested for history in histories), (
        "KV of requests between turns was parked"
    )


@pytest.mark.parametrize("block", range(ROLE_BLOCKS))
def test_the_laws_hold_for_episodes_that_speak_to_roles(block: int) -> None:
    size, num_said = ROLE_HISTORIES // ROLE_BLOCKS, 0
    for seed in range(50_000 + block * size, 50_000 + (block + 1) * size):
        executor = run(seed, is_episodic=True, has_roles=True).executor
        assert isinstance(executor, RoleExecutor)
        num_said += executor.num_said["said"]
    assert num_said > size, "roles spoke"


def test_max_staleness_zero_is_on_policy() -> None:
    for seed in range(20_000, 20_050):
        history = run(seed, schedule="dora", max_staleness=0)
        assert history.audit.worst_staleness == 0


def test_the_same_inputs_give_the_same_decisions() -> None:
    for seed in range(30_000, 30_020):
        assert decisions_of(seed) == decisions_of(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", range(20))
def test_the_laws_hold_in_very_many_histories(block: int) -> None:
    for seed in range(100_000 + block * 1500, 100_000 + (block + 1) * 1500):
        run(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", range(4))
def test_the_laws_hold_for_very_many_that_speak_to_roles(block: int) -> None:
    for seed in range(300_000 + block * 500, 300_000 + (block + 1) * 500):
        run(seed, is_episodic=True, has_roles=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", range(8))
def test_the_laws_hold_for_very_many_episodes(block: int) -> None:
    for seed in range(200_000 + block * 500, 200_000 + (block + 1) * 500):
        run(seed, is_episodic=True)


def run(seed: int, *, is_episodic: bool = False, has_roles: bool = False, **fixed: object) -> History:
    history = History(seed, is_episodic=is_episodic, has_roles=has_roles, **fixed)
    try:
        history.run()
    except Exception as error:
        error.add_note(f"History({seed}, **{fixed}): {history.describe()}")
        raise
    return history


def decisions_of(seed: int) -> list[Decision]:
    history = History(seed)
    decisions: list[Decision] = []
    carry_out = history.executor.carry_out
    history.executor.carry_out = lambda d: (decisions.append(d), carry_out(d))[1]  # type: ignore[method-assign]
    history.run()
    return decisions
