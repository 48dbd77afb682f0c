"""Facts as text: the line of a step, durations, shares."""

from collections.abc import Sequence
from statistics import median

from dora_rl.observe.live.facts import State, StepFacts

_USUAL = 8
"""Steps whose median time predicts the rest."""


def step_line(facts: StepFacts, *, num_steps: int, left_s: float | None) -> str:
    """One train step in one line."""
    parts = [
        f"step {facts.step + 1}/{num_steps}",
        f"reward {number(facts.reward)}",
        f"tokens {facts.mean_tokens:.0f} (max {facts.max_tokens})",
        f"staleness {facts.staleness_mean:.2f} (max {facts.staleness_max})",
        f"{facts.tokens_per_s:,.0f} tokens/s",
        f"{duration(facts.step_s)} a step, {duration(facts.train_s)} of it training",
    ]
    if facts.zero_variance_share:
        parts.insert(2, f"{facts.zero_variance_share:.0%} of groups without variance")
    if facts.truncated_share:
        parts.append(f"{facts.truncated_share:.0%} cut")
    if left_s:
        parts.append(f"{duration(left_s)} left")
    return "  ".join(parts)


def left_s(steps: Sequence[StepFacts], num_steps: int) -> float | None:
    """Time until the last step, by the usual time of the latest ones."""
    remaining = num_steps - (steps[-1].step + 1) if steps else num_steps
    if not steps or remaining <= 0:
        return None
    # The first step waited for processes to start.
    return remaining * median(step.step_s for step in steps[1:][-_USUAL:] or steps)


def waiting(state: State) -> str:
    """Who does what, and who waits for whom."""
    idle = [instance for instance, versions in state.running.items() if not versions]
    if not idle:
        return f"trainer {state.trainer}"
    who = "instances" if len(state.running) == len(idle) > 1 else f"instance {', '.join(map(str, idle))}"
    return f"trainer {state.trainer}; {who} idle"


def by_version(active: dict[int, int]) -> str:
    """`v3 x 12, v2 x 4`, the newest first."""
    return (
        ", ".join(f"v{version} x {groups}" for version, groups in sorted(active.items(), reverse=True)) or "-"
    )


def duration(seconds: float) -> str:
    """`8.4 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
