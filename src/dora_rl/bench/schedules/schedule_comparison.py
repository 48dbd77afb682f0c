"""One recipe under several schedules: live runs one after the other, measured from what they leave behind."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

from msgspec import field
from msgspec.structs import replace

from dora_rl.bench.schedules.costs import MeasuredCosts, measured_costs
from dora_rl.bench.schedules.forecast import predicted_step_s, step_s
from dora_rl.bench.schedules.machine_use import used_s, watched_gpu
from dora_rl.bench.schedules.prescribed import LengthOf, run_prescribed
from dora_rl.bench.schedules.spans import LogFacts, StreamName, read_facts
from dora_rl.bench.whole_run import run_whole
from dora_rl.core.decisions import Decision
from dora_rl.core.history import History
from dora_rl.core.inputs import Input, Published
from dora_rl.core.recipe import Control, ImaginedTask, Lognormal, ScheduleName
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.record import Record
from dora_rl.observe.report.run_facts import RunFacts
from dora_rl.observe.report.run_reader import read_run
from dora_rl.prepare.machine import num_cores
from dora_rl.prepare.preparation import Preparation
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout, RunSetup
from dora_rl.sim.simulated_run import measured_steps
from dora_rl.sim.truth import Truth

SCHEDULES: tuple[ScheduleName, ...] = (
    "sync",
    "one_step_off",
    "partial",
    "async_ratio",
    "dora_onset",
    "dora",
)

_LEAST_WARMUP = 2
"""Least number of first steps left out: they consume what was generated while the trainer warmed up."""


class ScheduleScope(Record, frozen=True):
    """Which runs are compared: a recipe, schedules, seeds."""

    recipe: str
    """A recipe file, or the name of a shipped one."""
    assignments: tuple[str, ...]
    steps: int
    schedules: tuple[ScheduleName, ...]
    seeds: tuple[int, ...]
    directory: str
    """Directory under which the runs have their directories."""
    keeps_runs: bool = False
    lengths: Lognormal | None = None
    """Distribution of prescribed lengths; None where responses end by themselves."""


class ScheduleRun(Record, frozen=True):
    """The result of one live run under one schedule."""

    schedule: ScheduleName
    seed: int
    placement: str
    step_s: float
    predicted_step_s: float | None
    """Step time the simulator predicts; None without a synchronous run to take costs from."""
    rewards: tuple[float | None, ...] = field(name="reward_by_step")
    mean_tokens: float
    max_tokens: int
    staleness_mean: float
    staleness_max: int
    starved_s: float
    """Seconds of a step in which the trainer was starved."""
    window_stall_s: float
    """Seconds of a step in which the window stalled the trainer."""
    instance_idle_share: float
    trainer_idle_share: float
    gpu_busy_share: float | None
    trajectories_per_s: float

    @property
    def steps_per_minute(self) -> float:
        return 60.0 / self.step_s


class ScheduleComparison(Record, frozen=True):
    """All runs of a comparison of schedules, in the order they were made."""

    title: str
    claims_speed_only: bool
    runs: tuple[ScheduleRun, ...]
    costs: dict[str, MeasuredCosts]
    """Costs fitted to synchronous runs, by seed and placement."""

    def of(self, schedule: ScheduleName) -> list[ScheduleRun]:
        return [run for run in self.runs if run.schedule == schedule]

    def sync_step_s(self, seed: int) -> float | None:
        """Seconds of a step of the synchronous run with the placement that suited it best."""
        return min((run.step_s for run in self.of("sync") if run.seed == seed), default=None)


class _SyncBasis(Record, frozen=True, gc=True):
    """The costs and lengths of a synchronous run, from which others are predicted."""

    costs: MeasuredCosts
    lengths: dict[StreamName, int]
    cpu_s: float | None
    """Processor seconds of a step, of all processes together."""


class _MachineUse(Record, frozen=True):
    """How much of the GPU and the processors one run used."""

    gpu_share: float | None
    cpu_s: float | None
    """Processor seconds of a step."""


def compare(scope: ScheduleScope, tell: Callable[[ScheduleRun], None]) -> ScheduleComparison:
    """Run every schedule for the first seed, then for the next: a disturbance hits all alike."""
    runs: list[ScheduleRun] = []
    costs: dict[str, MeasuredCosts] = {}
    title = ""
    for seed in scope.seeds:
        bases: dict[str, _SyncBasis] = {}
        with ExitStack() as prepared:
            for setup, inputs in _setups(scope, seed, prepared):
                title = title or _title(setup)
                runs.append(_one(setup, inputs, scope.lengths, bases))
                tell(runs[-1])
                if not scope.keeps_runs:
                    shutil.rmtree(setup.run_directory)
        costs |= {f"seed {seed}, {placement}": basis.costs for placement, basis in bases.items()}
    return ScheduleComparison(
        title=title, claims_speed_only=scope.lengths is not None, runs=tuple(runs), costs=costs
    )


def _one(
    setup: RunSetup, inputs: Path, lengths: Lognormal | None, bases: dict[str, _SyncBasis]
) -> ScheduleRun:
    """Run one set-up, measure it and predict it, by the costs of the synchronous run with as many threads."""
    root, placement = Path(setup.run_directory), _placement(setup.devices)
    use = _run(setup, inputs, lengths)
    facts, run = read_facts(History(LiveLayout(root=root).events)), read_run(root)
    if setup.recipe.control.schedule == "sync":
        bases[placement] = _SyncBasis(costs=measured_costs(facts), lengths=facts.lengths, cpu_s=use.cpu_s)
    basis = bases.get(placement) or next(iter(bases.values()), None)
    predicted = _predicted(setup, basis, facts) if basis else None
    return _measured(setup, run, predicted, use.gpu_share)


def _predicted(setup: RunSetup, basis: _SyncBasis, facts: LogFacts) -> float:
    """Predicted seconds of a step: simulated, or what the processors need if that is more.

    The simulator's devices share nothing. On CPUs instances and the trainer share the cores with each other
    and with whatever else there is to do (orchestrator, rewards).
    """
    root = Path(setup.run_directory)
    simulated_s = predicted_step_s(root, costs=basis.costs, lengths=basis.lengths, facts=facts)
    if setup.devices.instance_device != "cpu" or basis.cpu_s is None:
        return simulated_s
    return max(simulated_s, basis.cpu_s / num_cores())


def _setups(scope: ScheduleScope, seed: int, prepared: ExitStack) -> Iterator[tuple[RunSetup, Path]]:
    """Each schedule as it is placed best, and its inputs; sync first, once more with the threads others have.

    More threads are not always faster, so sync is compared at whichever suits it; and the costs of those that
    have fewer threads are measured with as many.
    """
    chosen = sorted(scope.schedules, key=SCHEDULES.index)
    setups = [_planned(scope, schedule, seed, prepared) for schedule in chosen]
    others = [setup for setup, _ in setups if setup.recipe.control.schedule != "sync"]
    for setup, inputs in setups:
        yield setup, inputs
        if setup.recipe.control.schedule == "sync" and others and others[0].devices != setup.devices:
            again = f"{setup.run_directory}-fewer-threads"
            yield replace(setup, devices=others[0].devices, run_directory=again), inputs


def _planned(
    scope: ScheduleScope, schedule: ScheduleName, seed: int, prepared: ExitStack
) -> tuple[RunSetup, Path]:
    """The recipe under a schedule, placed as suits it; nothing beside training takes time from it."""
    is_ratio = schedule == "async_ratio"
    fixed = (
        f"steps={scope.steps}",
        f"seed={seed}",
        f"control.schedule={schedule}",
        "evaluation.every=0",
        f"checkpoints.every={scope.steps}",
        f"simulation.warmup_steps={max(_LEAST_WARMUP, scope.steps // 4)}",
        # What a schedule has no use for, a recipe for all of them may say.
        *(["control.active_groups=null"] if Control(schedule=schedule).fixes_target else []),
        *([f"control.redundant_{what}=0" for what in ("groups", "members")] if not is_ratio else []),
    )
    recipe = resolve_recipe(scope.recipe, [*scope.assignments, *fixed])
    directory = str(Path(scope.directory) / f"{schedule}-{seed}")
    preparation = prepared.enter_context(Preparation(recipe, directory))
    return preparation.plan().setup, preparation.finish()


def _run(setup: RunSetup, inputs: Path, lengths: Lognormal | None) -> _MachineUse:
    """Run a set-up to its end, and measure what it used of the machine in the steps that count."""
    first, last = measured_steps(setup.recipe)
    published_at: list[float] = []
    used: list[float | None] = []

    def watch(event: Input, decisions: Sequence[Decision]) -> None:
        if isinstance(event, Published):
            published_at.append(time.monotonic())
            if event.version in (max(1, first), last):
                used.append(used_s())

    with watched_gpu(setup.devices.trainer_device != "cpu") as use:
        if lengths is None:
            run_whole(setup, inputs, [watch])
        else:
            run_prescribed(setup, inputs, length_of(lengths, setup.recipe.seed), [watch])
    begin, end = used
    return _MachineUse(
        gpu_share=use.busy_share(published_at[max(0, first - 1)], published_at[last - 1]),
        cpu_s=(end - begin) / (last - max(1, first)) if begin is not None and end is not None else None,
    )


def length_of(lengths: Lognormal, seed: int) -> LengthOf:
    """The simulator's own draws of lengths: a long tail, the same for every schedule."""
    truth = Truth(ImaginedTask(lengths=lengths), seed)
    return lambda key: truth.response_tokens(key.epoch, key.row, key.member, key.attempt)


def _measured(
    setup: RunSetup, facts: RunFacts, predicted: float | None, busy_share: float | None
) -> ScheduleRun:
    recipe = setup.recipe
    first, last = measured_steps(recipe)
    counted = facts.steps[first:last]
    mean_s = step_s(recipe, [step.published_at for step in facts.steps])
    return ScheduleRun(
        schedule=setup.recipe.control.schedule,
        seed=setup.recipe.seed,
        placement=_placement(setup.devices),
        step_s=mean_s,
        predicted_step_s=predicted,
        rewards=tuple(step.reward for step in facts.steps),
        mean_tokens=fmean(step.mean_tokens for step in counted),
        max_tokens=max(step.max_tokens for step in counted),
        staleness_mean=fmean(step.staleness_mean for step in facts.steps),
        staleness_max=max(step.staleness_max for step in facts.steps),
        starved_s=fmean(step.starved_s for step in counted),
        window_stall_s=fmean(step.window_s for step in counted),
        instance_idle_share=facts.instance_idle_fraction,
        trainer_idle_share=facts.trainer_idle_fraction,
        gpu_busy_share=busy_share,
        trajectories_per_s=setup.recipe.batch.trajectories / mean_s,
    )


def _placement(devices: DeviceLayout) -> str:
    if devices.trainer_device != "cpu":
        return f"{devices.trainer_device}, {'in turn' if devices.is_elastic else 'beside each other'}"
    return f"{devices.instances} x {devices.instance_threads} + {devices.trainer_threads} threads"


def _title(setup: RunSetup) -> str:
    batch = setup.recipe.batch
    return (
        f"{Path(setup.model_directory).name} on engine {setup.recipe.engine.kind}, "
        f"{batch.groups} groups of {batch.group_size}, "
        f"up to {setup.max_new_tokens} tokens, {setup.recipe.steps} steps"
    )


def reward_gaps(comparison: ScheduleComparison) -> Iterator[tuple[ScheduleName, float, float | None]]:
    """Distance of each schedule's mean reward curve from sync's, and of seeds of sync from each other.

    The latter is None with a single seed.
    """
    sync = comparison.of("sync")
    apart = [_gap(a.rewards, b.rewards) for a in sync for b in sync if a.seed < b.seed]
    for schedule in SCHEDULES[1:]:
        own = [run.rewards for run in comparison.of(schedule)]
        if own and sync:
            gap = _gap(_mean_curve(own), _mean_curve([run.rewards for run in sync]))
            yield schedule, gap, max(apart, default=None)


def _mean_curve(curves: Sequence[tuple[float | None, ...]]) -> tuple[float | None, ...]:
    return tuple(fmean(reward or 0.0 for reward in at) for at in zip(*curves, strict=True))


def _gap(own: tuple[float | None, ...], other: tuple[float | None, ...]) -> float:
    """Mean distance of two curves over their steps."""
    return fmean(abs((a or 0.0) - (b or 0.0)) for a, b in zip(own, other, strict=True))
