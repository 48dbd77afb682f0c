"""Facts as text: the line of a step, durations, shares. Knows no console and no run."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from dora_rl.observe.live.event_facts import EvaluationFacts, RunState, StepFacts

_LATEST = 16
"""Number of steps that a rate is taken over: where groups finish in bursts, so do steps."""

_NOTHING = 0.005
"""Share below which a share is not worth showing: it would be shown as 0 %."""


def step_line(steps: Sequence[StepFacts], *, num_steps: int, compares_groups: bool = True) -> str:
    """The last of these train steps in one line of text; variance within groups only if `compares_groups`."""
    facts, left = steps[-1], left_s(steps, num_steps)
    parts = [
        f"step {facts.step}/{num_steps}",
        f"reward {number(facts.reward)}{_in_brackets(facts.values)}",
        f"tokens {facts.mean_tokens:.0f} (max {facts.max_tokens})",
        f"staleness {facts.staleness_mean:.2f} (max {facts.staleness_max})",
        f"{tokens_per_s(steps):,.0f} tokens/s",
        f"{duration(facts.step_s)} a step, {duration(facts.train_s)} of it training",
    ]
    if compares_groups and facts.zero_variance_share >= _NOTHING:
        parts.insert(2, f"{facts.zero_variance_share:.0%} of groups without variance")
    if facts.truncated_share >= _NOTHING:
        parts.append(f"{facts.truncated_share:.0%} cut")
    if left:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def evaluation_line(facts: EvaluationFacts) -> str:
    """One evaluation in one line of text."""
    own = _in_brackets(facts.values)
    return f"held out: {facts.reward:.3f}{own} {after_step(facts.version)}, over {rows_of(facts)}"


def rows_of(facts: EvaluationFacts) -> str:
    """Number of rows that an evaluation scored, in words."""
    return "1 row" if facts.num_scored == 1 else f"{facts.num_scored:,} rows"


def by_function(values: Mapping[str, float]) -> str:
    """The values of several reward functions as text, `right 0.005, short 0.980`; empty for a single one."""
    return ", ".join(f"{name} {number(value)}" for name, value in values.items()) if len(values) > 1 else ""


def _in_brackets(values: Mapping[str, float]) -> str:
    return f" ({text})" if (text := by_function(values)) else ""


def curves_by_function(
    points: Iterable[StepFacts | EvaluationFacts],
) -> dict[str, list[tuple[int, float]]]:
    """Version and mean value of each reward function, by name; empty where there is a single function."""
    found: dict[str, list[tuple[int, float]]] = {}
    for facts in points:
        version = facts.step if isinstance(facts, StepFacts) else facts.version
        for name, value in facts.values.items():
            found.setdefault(name, []).append((version, value))
    return found if len(found) > 1 else {}


def first_and_last(values: Sequence[float]) -> tuple[float, float]:
    """The mean of the first tenth of some values, and of the last."""
    tenth = max(1, len(values) // 10)
    return mean(values[:tenth]), mean(values[-tenth:])


def after_step(version: int) -> str:
    """When a version was published, in words: `after step 3`."""
    return f"after step {version}" if version else "before the first step"


def left_s(steps: Sequence[StepFacts], num_steps: int) -> float | None:
    """Seconds until the last step at the pace of the latest ones; None after the first step alone."""
    latest = steps[1:][-_LATEST:]
    remaining = num_steps - steps[-1].step if steps else num_steps
    return remaining * mean(step.step_s for step in latest) if latest and remaining > 0 else None


def tokens_per_s(steps: Sequence[StepFacts]) -> float:
    """Tokens generated a second over the latest steps, without the first, which waited for the start."""
    latest = steps[1:][-_LATEST:] or steps
    seconds = sum(step.step_s for step in latest)
    return sum(step.generated_tokens for step in latest) / seconds if seconds > 0 else 0.0


def waiting(state: RunState) -> str:
    """What the trainer does and which instances are idle, in words."""
    idle = [instance for instance, versions in state.running.items() if not versions]
    if not idle:
        return f"trainer {state.trainer}"
    who = "instances" if len(state.running) == len(idle) > 1 else f"instance {', '.join(map(str, idle))}"
    return f"trainer {state.trainer}; {who} idle"


def by_version(active: dict[int, int]) -> str:
    """Counts by version as text, `v3 x 12, v2 x 4`, the newest first."""
    return (
        ", ".join(f"v{version} x {groups}" for version, groups in sorted(active.items(), reverse=True)) or "-"
    )


def duration(seconds: float) -> str:
    """Seconds as text: `8.4 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def number(value: float | None) -> str:
    """A number with three digits after the point; a dash for None."""
    return "-" if value is None else f"{value:.3f}"
