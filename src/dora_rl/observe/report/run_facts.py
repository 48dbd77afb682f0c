"""The facts of a run that a report shows: from its steps, its timeline and its metrics."""

from statistics import fmean

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.costs.freshness_meter import Freshness
from dora_rl.costs.seconds_spent import SecondsSpent
from dora_rl.observe.live.completions import CompletedGroup
from dora_rl.observe.live.event_facts import EvaluationFacts, RunState, StepFacts, WarningFacts
from dora_rl.observe.live.metrics_tail import Metrics
from dora_rl.observe.live.step_words import first_and_last
from dora_rl.observe.timeline import Timeline


class RunFacts(Record, frozen=True, gc=True):
    """All that a report shows of a run; satisfies `BusyShares`, by which its bottleneck is named."""

    directory: str
    condition: str
    """Whether the run is finished, runs, was interrupted or broke off, in words."""
    recipe: Recipe
    elapsed_s: float
    steps: list[StepFacts]
    evaluations: list[EvaluationFacts]
    state: RunState
    metrics: list[Metrics]
    completions: list[CompletedGroup]
    timeline: Timeline
    seconds: SecondsSpent
    is_on_cpus: bool
    """Whether this is a live run whose instances have no GPU."""
    freshness: Freshness | None
    """Mean and least staleness of the steps in the middle of the run; None where it has too few."""
    warnings: list[WarningFacts]
    """All warnings given in the run, also those that no longer hold."""
    overlong: tuple[str, ...] = ()
    """Sentences about prompts left out because they are too long."""
    num_overlong: int = 0
    num_overlong_held_out: int = 0

    @property
    def starved_s(self) -> float:
        return sum(step.starved_s for step in self.steps)

    @property
    def window_stall_s(self) -> float:
        return sum(step.window_s for step in self.steps)

    @property
    def max_staleness(self) -> int:
        return self.recipe.control.staleness_bound

    @property
    def staleness_mean(self) -> float:
        if self.freshness is not None:
            return self.freshness.staleness_mean
        return fmean(step.staleness_mean for step in self.steps)

    @property
    def staleness_least(self) -> float | None:
        return self.freshness.staleness_least if self.freshness else None

    @property
    def gpus(self) -> int:
        """Number of devices by the run's own events: instances, and a trainer unless it is among them."""
        return len(self.timeline.specs) + (0 if self.elastic_gpus else 1)

    @property
    def elastic_gpus(self) -> int:
        return sum(spec.elastic for spec in self.timeline.specs.values())

    @property
    def trainer_idle_fraction(self) -> float:
        """Share of the time from the first batch to the last version in which the trainer was idle."""
        begin, end = self._trained_between
        busy = sum(min(span.end, end) - span.begin for span in self.timeline.trained if span.begin < end)
        return max(0.0, 1.0 - busy / (end - begin)) if end > begin else 0.0

    @property
    def instance_idle_fraction(self) -> float:
        """Share of the time from the first batch to the last version in which instances decoded nothing."""
        begin, end = self._trained_between
        if end <= begin or not self.timeline.loads:
            return 0.0
        return fmean(_idle_share(self.timeline, instance, begin, end) for instance in self.timeline.loads)

    @property
    def mean_reward(self) -> tuple[float, float] | None:
        """Mean reward over the first tenth of the steps, and over the last; None without rewards."""
        rewards = [step.reward for step in self.steps if step.reward is not None]
        return first_and_last(rewards) if rewards else None

    @property
    def _trained_between(self) -> tuple[float, float]:
        begin = min((span.begin for span in self.timeline.trained), default=0.0)
        return begin, max(self.timeline.published, default=begin)


def _idle_share(timeline: Timeline, instance: int, begin: float, end: float) -> float:
    running: dict[int, int] = {}
    idle_s, since, is_idle = 0.0, begin, True
    for load in timeline.loads[instance]:
        at = min(max(load.at, begin), end)
        idle_s += (at - since) * is_idle
        running[load.version] = load.running
        since, is_idle = at, not any(running.values())
    return (idle_s + (end - since) * is_idle) / (end - begin)
