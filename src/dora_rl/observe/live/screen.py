"""The screen of a live run: what a Follower knows, drawn by rich. Knows nothing of where it comes from."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dora_rl.observe.live.event_facts import EvaluationFacts, RunState, StepFacts
from dora_rl.observe.live.step_words import by_version, duration, left_s, number, tokens_per_s, waiting
from dora_rl.observe.tables import table

_BLOCKS = "▁▂▃▄▅▆▇█"
_SHOWN_STEPS = 8
_CURVE = 60
_COLUMNS = (
    ">step",
    ">reward",
    ">no variance",
    ">tokens",
    ">cut",
    ">staleness",
    ">tokens/s",
    ">step time",
    ">starved",
    ">window",
)


def draw(
    title: str,
    state: RunState,
    steps: Sequence[StepFacts],
    evaluations: Sequence[EvaluationFacts],
    *,
    num_steps: int,
    warnings: Sequence[str] = (),
    remarks: Sequence[str] = (),
) -> RenderableType:
    """The whole screen of a run; warnings and remarks stand at the top, where nothing cuts them off."""
    return Group(
        _progress(title, state, steps, num_steps),
        *(Text(f"warning: {warning}", style="red") for warning in warnings),
        *(Text(remark, style="yellow") for remark in remarks),
        _steps(steps),
        _now(state, steps, evaluations),
    )


def curve(values: Sequence[float], width: int = _CURVE) -> str:
    """A line of block characters: the values, averaged down to `width`, between their least and greatest."""
    if not values:
        return ""
    size = -(-len(values) // width)
    means = [sum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1))] for value in means)


def _progress(title: str, state: RunState, steps: Sequence[StepFacts], num_steps: int) -> RenderableType:
    remaining = left_s(steps, num_steps)
    grid = Table.grid(padding=(0, 2))
    eta = f"{duration(remaining)} left" if remaining else ""
    grid.add_row(
        Text(title, style="bold"),
        ProgressBar(total=num_steps, completed=state.version, width=30),
        f"{state.version}/{num_steps}",
        duration(state.at),
        eta,
    )
    return grid


def _steps(steps: Sequence[StepFacts]) -> RenderableType:
    made = table("", *_COLUMNS)
    for end, facts in list(enumerate(steps, 1))[-_SHOWN_STEPS:]:
        made.add_row(
            str(facts.step),
            number(facts.reward),
            f"{facts.zero_variance_share:.0%}",
            f"{facts.mean_tokens:.0f}",
            f"{facts.truncated_share:.0%}",
            f"{facts.staleness_mean:.2f} / {facts.staleness_max}",
            f"{tokens_per_s(steps[:end]):,.0f}",
            duration(facts.step_s),
            duration(facts.starved_s),
            duration(facts.window_s),
        )
    return made


def _now(
    state: RunState, steps: Sequence[StepFacts], evaluations: Sequence[EvaluationFacts]
) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    rewards = [facts.reward for facts in steps if facts.reward is not None]
    if rewards:
        grid.add_row("reward", f"{curve(rewards)}  {rewards[0]:.3f} to {rewards[-1]:.3f}")
    if evaluations:
        newest = evaluations[-1]
        grid.add_row(
            "held out", f"{newest.reward:.3f} over {newest.num_scored} rows, version {newest.version}"
        )
    grid.add_row("active groups", by_version(state.active_by_version))
    for instance, versions in state.running.items():
        requests = ", ".join(f"{count} of v{version}" for version, count in versions.items()) or "idle"
        grid.add_row(f"instance {instance}", requests)
    grid.add_row("now", waiting(state))
    if state.outcomes:
        grid.add_row("left out", ", ".join(f"{count:,} {name}" for name, count in state.outcomes.items()))
    return grid
