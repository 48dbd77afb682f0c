"""Episodes through the whole simulator: resets, long waits, failures and cuts, under every schedule."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.errors import ConfigError
from dora_rl.core.history import History, HistoryWriter
from dora_rl.core.inputs import Input
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.sim.history_replay import replay_history
from dora_rl.sim.simulated_run import simulate

from .recipes import SCHEDULES, random_recipe, small
from .test_laws import check, run_checked

TURNS = {"mean_turns": 3.0, "latency_s": 2.0, "latency_sigma": 1.2, "reset_s": 5.0}


def episodic(recipe: Recipe, *, max_open: int | None = None, ahead: int | None = None) -> Recipe:
    return replace(recipe, episode=EpisodeSettings(function="simulated", max_open=max_open, ahead=ahead))


class Waits:
    """Seconds that each environment kept each turn, by what it is drawn by."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[int, ...], float] = {}
        self.opened: set[tuple[int, int]] = set()
        self.early: list[do.Admit] = []
        self._of: dict[int, tuple[int, ...]] = {}
        self._since: dict[int, float] = {}
        self._turns: dict[int, int] = {}

    def watch(self, event: Input, decisions: Iterable[Decision]) -> None:
        match event:
            case told.Opened():
                self.opened.add((event.epoch, event.row))
            case told.TurnEnded(trajectory=key):
                self._since[key] = event.at
                self._turns[key] = self._turns.get(key, -1) + 1
            case told.EnvironmentReplied(trajectory=key) | told.EpisodeEnded(trajectory=key):
                self.seconds[*self._of[key], self._turns[key]] = event.at - self._since[key]
        for d in decisions:
            if isinstance(d, do.Start):
                self._of[d.trajectory] = (d.epoch, d.row, d.member)
            elif isinstance(d, do.Admit) and (d.epoch, d.row) not in self.opened:
                self.early.append(d)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_laws_hold_for_episodes(schedule: str) -> None:
    recipe = episodic(small(schedule=schedule, turns=TURNS | {"failure_rate": 0.05}, environment_tries=2))
    check(recipe, run_checked(recipe))


@pytest.mark.parametrize("block", range(4))
def test_the_laws_hold_for_episodes_in_random_set_ups(block: int) -> None:
    for seed in range(10 * block, 10 * (block + 1)):
        drawn = random_recipe(seed)
        is_mixed = drawn.control.mixes_versions
        role_tokens = 0 if is_mixed or drawn.cluster.max_versions < 3 else (0, 40)[seed % 2]
        turns = replace(
            drawn.task.turns, reset_s=3.0 * (seed % 3), latency_sigma=1.5, role_tokens=role_tokens
        )
        control = replace(drawn.control, environment_grace_s=(5.0, 1e6)[seed % 2])
        drawn = replace(drawn, task=replace(drawn.task, turns=turns), control=control)
        size = drawn.batch.group_size
        recipe = episodic(drawn, max_open=(None, size, 3 * size)[seed % 3], ahead=(None, 1)[seed % 2])
        try:
            check(recipe, run_checked(recipe))
        except Exception as error:
            error.add_note(f"{recipe}")
            raise


@pytest.mark.parametrize("schedule", [each for each in SCHEDULES if each not in ("partial", "counted")])
def test_the_laws_hold_where_the_initial_model_plays_a_role(schedule: str) -> None:
    turns = TURNS | {"failure_rate": 0.05, "role_tokens": 60}
    recipe = episodic(small(schedule=schedule, turns=turns, environment_tries=2))
    asked, started = set[int](), set[int]()

    def watch(event: Input, decisions: Iterable[Decision]) -> None:
        if isinstance(event, told.RoleTurnAsked):
            asked.add(event.question)
        for d in decisions:
            assert d != do.Retire(version=0)
            if isinstance(d, do.Start) and d.question is not None:
                assert d.version == 0
                started.add(d.question)

    check(recipe, run_checked(recipe))
    simulate(recipe, [watch])
    assert len(asked) > 100
    assert len(asked - started) < 0.1 * len(asked), "only what nobody awaits any more never starts"


def test_a_role_is_not_played_where_versions_change_under_what_generates() -> None:
    with pytest.raises(ConfigError, match="a frozen version plays a role"):
        small(schedule="partial", turns=TURNS | {"role_tokens": 60})


def test_schedules_see_the_same_waits_and_nothing_starts_before_its_reset() -> None:
    seen = []
    for schedule in ("sync", "dora"):
        waits = Waits()
        simulate(episodic(small(schedule=schedule, turns=TURNS, environment_grace_s=1e6)), [waits.watch])
        assert not waits.early
        seen.append(waits.seconds)
    common = seen[0].keys() & seen[1].keys()
    assert len(common) > 200
    assert all(seen[0][key] == pytest.approx(seen[1][key]) for key in common)


def test_the_end_of_an_episode_counts_what_the_policy_drew() -> None:
    drawn: list[int] = []
    recipe = episodic(small(schedule="sync", turns=TURNS | {"environment_tokens": 5000}))
    simulate(recipe, [lambda e, _: drawn.append(e.tokens) if isinstance(e, told.EpisodeEnded) else None])
    assert max(drawn) <= recipe.task.lengths.max_tokens


def test_a_slow_reset_costs_neither_freshness_nor_much_time_where_it_is_done_ahead() -> None:
    turns = TURNS | {"latency_sigma": 0.3}  # Long tails would drown the difference in so short a run.
    quick, early, late = (
        simulate(episodic(small(steps=12, active_groups=16, turns=turns | {"reset_s": reset_s}), ahead=ahead))
        for reset_s, ahead in ((0.0, 32), (10.0, 32), (10.0, 1))
    )
    assert early.staleness_mean <= quick.staleness_mean + 0.05
    assert early.step_time_s < 1.1 * quick.step_time_s
    assert late.step_time_s > 2.0 * quick.step_time_s


def test_environments_that_never_reply_in_time_are_cut_and_the_run_goes_on() -> None:
    turns = TURNS | {"latency_sigma": 3.0}
    recipe = episodic(small(schedule="dora", turns=turns, environment_grace_s=10.0))
    result = run_checked(recipe)
    check(recipe, result)
    assert result.cut_trajectories > 0
    patient = episodic(small(schedule="dora", turns=turns, environment_grace_s=1e6))
    assert result.step_time_s < 0.7 * simulate(patient).step_time_s


def test_redundant_episodes_buy_time_and_every_one_of_them_is_counted() -> None:
    keys = {"schedule": "async_ratio", "max_staleness": 1, "batch": {"group_size": 6}, "turns": TURNS}
    plain, members, groups = (
        episodic(small(**keys, environment_grace_s=1e6, **more), max_open=200)
        for more in ({}, {"redundant_members": 2}, {"redundant_groups": 4})
    )
    results = [run_checked(recipe) for recipe in (plain, members, groups)]
    for recipe, result in zip((plain, members, groups), results, strict=True):
        check(recipe, result)
    waited, spared, surplus = results
    assert waited.closed_trajectories == 0 < min(spared.closed_trajectories, surplus.closed_trajectories)
    assert spared.trained_trajectories == members.steps * members.batch.groups * 4
    assert max(spared.step_time_s, surplus.step_time_s) < waited.step_time_s


def test_a_run_of_episodes_replays(tmp_path: Path) -> None:
    recipe = episodic(small(schedule="dora", turns=TURNS | {"failure_rate": 0.1}), max_open=80)
    path = tmp_path / "events.jsonl"
    with HistoryWriter(path, recipe) as log:
        simulate(recipe, [log.watch])
    found = replay_history(History(path))
    assert found.difference is None
    assert found.num_decisions > 500
