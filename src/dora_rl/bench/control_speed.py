"""The bench of the control plane: does it keep up with a fleet of thousands?

One recipe at three sizes, n/16, n/4 and n instances, each a whole run with everything counted: control,
simulator, audit and start-up. Then single rebalances at the size their limit is stated for. All of it is
one thread, and time is this process's CPU time, so a busy machine blurs the figures less. Sizes grow, so
the peak of memory after each is its own.

Time for an input grows with n for two reasons: more work, and memory that no longer fits into caches. To
tell them apart, the lines of Python that an input takes are counted as well, at two small sizes: they are
the same on every machine.
"""

import resource
import sys
from collections.abc import Callable, Mapping
from math import ceil, log
from time import monotonic, process_time
from types import FrameType
from typing import Any

from dora_rl.control.plane import ControlPlane
from dora_rl.core.recipe import Batch, Cluster, Control, ImaginedTask, Lognormal, Recipe
from dora_rl.core.record import Record
from dora_rl.observe.live.step_words import duration
from dora_rl.sim.simulated_engine import remembered
from dora_rl.sim.simulated_run import build_world, run_world

GROUP_SIZE = 16
MAX_STALENESS = 3
_ACTIVE_BATCHES = 3
"""Batches of groups that are active at once: R = 2 B, and the batch that the idle trainer waits for."""
_SLOTS = 128

RUN_LIMIT_S = 180.0
RUN_LIMIT_TRAJECTORIES = 3_276_800
"""Trajectories for which `RUN_LIMIT_S` is stated (ten steps of 327,680); kept in proportion."""
MEMORY_LIMIT_BYTES = 4 << 30
REBALANCE_LIMIT_S = 0.050
_REBALANCE_INSTANCES = 1000
_REBALANCE_TRAJECTORIES = 100_000
_COUNTED_STEPS = 4


class FleetScope(Record, frozen=True):
    """What the benchmark of the control plane measures: sizes of the fleet, and steps."""

    instances: int = 10_240
    steps: int = 10
    rebalance_instances: int = _REBALANCE_INSTANCES
    rebalance_trajectories: int = _REBALANCE_TRAJECTORIES
    counted_instances: tuple[int, int] = (16, 256)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(max(4, self.instances // part) for part in (16, 4, 1))


QUICK = FleetScope(
    instances=128,
    steps=4,
    rebalance_instances=64,
    rebalance_trajectories=6_400,
    counted_instances=(4, 32),
)


class FleetRun(Record, frozen=True):
    """The time and memory of one simulated run at one size of the fleet."""

    instances: int
    steps: int
    batch_trajectories: int
    active_trajectories: int
    """Most trajectories that were active at once."""
    trajectories: int
    inputs: int
    decisions: int
    cpu_s: float
    trajectory_us: float
    """CPU microseconds for each trajectory that was trained on."""
    input_us: float
    """CPU microseconds for each input of control."""
    peak_rss_bytes: int
    rebalances: int
    rebalance_p50_s: float
    rebalance_p99_s: float
    rebalance_max_s: float


class LineCount(Record, frozen=True):
    """Lines of Python executed for an input: a cost that is the same on every machine."""

    instances: int
    active_trajectories: int
    lines_per_input: float


class LimitCheck(Record, frozen=True):
    """One measured figure against the limit it must stay within."""

    name: str
    value: float
    limit: float
    unit: str
    is_met: bool


class ControlReport(Record, frozen=True):
    """All sizes that were measured, and whether the limits are met."""

    sizes: tuple[FleetRun, ...]
    rebalancing: FleetRun
    work: tuple[LineCount, LineCount]
    checks: tuple[LimitCheck, ...]


def run_bench(scope: FleetScope, advance: Callable[[str], None] = lambda what: None) -> ControlReport:
    """Measure every size, the smallest first; `advance` is called with what was measured."""
    sizes = []
    for instances in scope.sizes:
        sizes.append(measure(recipe_of(instances, scope.steps)))
        advance(f"{instances} instances")
    rebalancing = measure(recipe_of(scope.rebalance_instances, scope.steps, scope.rebalance_trajectories))
    advance("rebalancing")
    few, many = (count_lines(recipe_of(instances, _COUNTED_STEPS)) for instances in scope.counted_instances)
    advance("lines")
    checks = (*_speed_checks(sizes, rebalancing), *_growth_checks(sizes[0], sizes[-1], few, many))
    return ControlReport(sizes=tuple(sizes), rebalancing=rebalancing, work=(few, many), checks=checks)


def recipe_of(instances: int, steps: int, active_trajectories: int | None = None) -> Recipe:
    """A 7B model on so many instances; three batches fill three quarters of its slots by default."""
    active = active_trajectories or instances * _SLOTS * 3 // 4
    groups = ceil(active / (_ACTIVE_BATCHES * GROUP_SIZE))
    return Recipe(
        model="Qwen2.5-7B",
        steps=steps,
        batch=Batch(groups=groups, group_size=GROUP_SIZE),
        control=Control(max_staleness=MAX_STALENESS, active_groups=(_ACTIVE_BATCHES - 1) * groups),
        cluster=Cluster(
            gpus=instances + max(1, instances // 2), rollout_gpus=instances, tensor_parallel=1, slots=_SLOTS
        ),
        task=ImaginedTask(
            rows=max(1000, 4 * groups),
            prompt_tokens=256,
            lengths=Lognormal(median_tokens=1500.0, sigma=0.8, max_tokens=8192),
        ),
    )


def measure(recipe: Recipe) -> FleetRun:
    """Measure one run of a recipe from nothing to its end."""
    began = process_time()
    world = build_world(recipe)
    stopwatch = _RebalanceStopwatch(world.plane)
    result = run_world(world)
    cpu_s = process_time() - began
    return FleetRun(
        instances=result.instances,
        steps=recipe.steps,
        batch_trajectories=recipe.batch.trajectories,
        active_trajectories=stopwatch.most_active * recipe.batch.group_size,
        trajectories=result.trained_trajectories,
        inputs=result.inputs,
        decisions=result.decisions,
        cpu_s=cpu_s,
        trajectory_us=1e6 * cpu_s / result.trained_trajectories,
        input_us=1e6 * cpu_s / result.inputs,
        peak_rss_bytes=_peak_rss_bytes(),
        rebalances=len(stopwatch.times_s),
        rebalance_p50_s=stopwatch.quantile(0.5),
        rebalance_p99_s=stopwatch.quantile(0.99),
        rebalance_max_s=stopwatch.quantile(1.0),
    )


def count_lines(recipe: Recipe) -> LineCount:
    """Run a recipe and count the lines of this package it executes."""
    # Costs that an earlier run worked out would be lines that this one does without.
    remembered.cache_clear()
    world = build_world(recipe)
    counter = _LineCounter()
    tracer = sys.gettrace()
    sys.settrace(counter)
    try:
        result = run_world(world)
    finally:
        sys.settrace(tracer)
    return LineCount(
        instances=result.instances,
        active_trajectories=_ACTIVE_BATCHES * recipe.batch.trajectories,
        lines_per_input=counter.lines / result.inputs,
    )


class _LineCounter:
    """A trace function for `sys.settrace` that counts executed lines of this package."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> "_LineCounter | None":
        if not frame.f_globals.get("__name__", "").startswith("dora_rl."):
            # Lines of Python's own library depend on what it has remembered.
            return None
        self.lines += event == "line"
        return self


class _RebalanceStopwatch:
    """Times every rebalance of one control plane: taking stock, planning and carrying out."""

    def __init__(self, plane: ControlPlane) -> None:
        self._window = plane.window
        self._rebalance = plane.fleet_changes.rebalance
        self.times_s: list[float] = []
        self.most_active = 0
        plane.fleet_changes.rebalance = self.rebalance  # type: ignore[method-assign]

    def rebalance(self, waiting: Mapping[int, int], now: float) -> None:
        self.most_active = max(self.most_active, self._window.num_active)
        began = process_time()
        self._rebalance(waiting, now)
        self.times_s.append(process_time() - began)

    def quantile(self, share: float) -> float:
        """The smallest time that at least `share` of the rebalances stayed within."""
        return sorted(self.times_s)[ceil(share * len(self.times_s)) - 1]


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _speed_checks(sizes: list[FleetRun], rebalancing: FleetRun) -> tuple[LimitCheck, ...]:
    largest = sizes[-1]
    run_limit_s = RUN_LIMIT_S * largest.trajectories / RUN_LIMIT_TRAJECTORIES
    rebalance = f"p99 of a rebalance, {rebalancing.instances:,} instances"
    return (
        _check(f"CPU of {largest.steps} steps", largest.cpu_s, run_limit_s, "s"),
        _check("peak memory", largest.peak_rss_bytes / 2**30, MEMORY_LIMIT_BYTES / 2**30, "GiB"),
        _check(rebalance, 1e3 * rebalancing.rebalance_p99_s, 1e3 * REBALANCE_LIMIT_S, "ms"),
    )


def _growth_checks(
    smallest: FleetRun, largest: FleetRun, few: LineCount, many: LineCount
) -> tuple[LimitCheck, ...]:
    """Checks that the cost of an input grows no faster than log n in the active trajectories."""
    work = f"lines an input, {few.instances:,} to {many.instances:,} instances"
    time = f"CPU an input, {smallest.instances:,} to {largest.instances:,} instances"
    return (
        _check(work, many.lines_per_input / few.lines_per_input, log_ratio(many, few), "x"),
        _check(time, largest.input_us / smallest.input_us, log_ratio(largest, smallest), "x"),
    )


def _check(name: str, value: float, limit: float, unit: str) -> LimitCheck:
    return LimitCheck(name=name, value=value, limit=limit, unit=unit, is_met=value <= limit)


def log_ratio(size: FleetRun | LineCount, smallest: FleetRun | LineCount) -> float:
    """Ratio by which log n grew, n being the active trajectories."""
    return log(size.active_trajectories) / log(smallest.active_trajectories)


_STEP_S = 1.5e-3
"""CPU seconds for a step of one instance, as measured with 10,240 of them; small sizes take less."""


def bench_control(scope: FleetScope, say: Callable[[str], None]) -> ControlReport:
    """Run the benchmark; `say` is called with the expected duration, then with a line for every part."""
    parts = [*(f"{number:,} instances" for number in scope.sizes), "single rebalances", "lines of Python"]
    began, done = monotonic(), 0

    def advance(what: str) -> None:
        nonlocal began, done
        now = monotonic()
        following = f"; next {parts[done + 1]}" if done + 1 < len(parts) else ""
        say(f"{done + 1}/{len(parts)} {parts[done]}: {duration(now - began)}{following}")
        began, done = now, done + 1

    if scope != QUICK:
        seconds = _STEP_S * scope.steps * (sum(scope.sizes) + scope.rebalance_instances)
        most = parts[len(scope.sizes) - 1]
        say(
            f"takes about {duration(seconds)} of one free core, most of it for {most}; "
            "--quick takes a few seconds"
        )
    return run_bench(scope, advance)
