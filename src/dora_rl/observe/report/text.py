"""A run in words: labels and lines, for the terminal and the page."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from dora_rl.core.visible_text import one_line
from dora_rl.observe.live.event_facts import WarningFacts
from dora_rl.observe.live.screen import curve
from dora_rl.observe.live.step_words import (
    after_step,
    by_version,
    curves_by_function,
    duration,
    first_and_last,
    left_s,
)
from dora_rl.observe.report.run_facts import RunFacts
from dora_rl.observe.result_words import SKIP_WORDS, bottleneck, staleness_words
from dora_rl.observe.seconds_words import seconds_lines
from dora_rl.observe.terminal import fact

_LABEL = 15
_SHOWN_EVALUATIONS = 6


def lines(run: RunFacts) -> Iterator[tuple[str, str]]:
    """Labels and texts about a run, most important first."""
    recipe = run.recipe
    yield "condition", run.condition
    yield "model", f"{recipe.model}, {recipe.batch.groups} groups of {recipe.batch.group_size} a step"
    yield "steps", f"{run.state.version} of {recipe.steps} in {duration(run.elapsed_s)}{_left(run)}"
    if run.mean_reward is not None:
        first, last = run.mean_reward
        rewards = [step.reward for step in run.steps if step.reward is not None]
        yield "reward", f"{first:.3f} at first, {last:.3f} at last  {curve(rewards)}"
    for name, points in curves_by_function(run.steps).items():
        first, last = first_and_last([value for _, value in points])
        yield f"  {name}", f"{first:.3f} at first, {last:.3f} at last"
    if run.evaluations:
        yield "held out", _held_out([(each.version, each.reward) for each in run.evaluations])
    for name, evaluated in curves_by_function(run.evaluations).items():
        yield f"  {name}", _held_out(evaluated)
    if run.steps:
        yield from _step_lines(run)
        yield "bottleneck", bottleneck(run, seconds=run.seconds, is_on_cpus=run.is_on_cpus)
    if run.state.outcomes:
        yield "left out", ", ".join(f"{number:,} {name}" for name, number in run.state.outcomes.items())
    yield from _trouble_lines(run)
    for text in run.overlong:
        yield "too long", text
    for warning in run.warnings:
        if warning.now is None:
            yield "was warned", warning_text(warning)
    if run.condition != "finished":
        yield "active groups", by_version(run.state.active_by_version)


def show(console: Console, run: RunFacts) -> None:
    """Print a run's report, last the warnings that still hold."""
    console.print(Text(one_line(run.directory), style="bold"), soft_wrap=True)
    said = list(lines(run))
    width = max(_LABEL, *(len(one_line(label)) + 2 for label, _ in said))
    for label, text in said:
        fact(console, f"  {label}", text, width=width + 2)
    for warning in run.warnings:
        if warning.now is not None:
            fact(console, "  warning", warning_text(warning), width=width + 2, style="red")


def warning_text(warning: WarningFacts) -> str:
    """A warning in words: with its latest figures if it still holds, else as it was given and until when."""
    if warning.now is None:
        return f"{after_step(warning.step)}: {warning.text} (no longer {after_step(warning.until)})"
    return f"{warning.now} (first {after_step(warning.step)})"


def _held_out(rewards: Sequence[tuple[int, float]]) -> str:
    """The rewards of the first and the last evaluations, by version, in words."""
    parts = [f"{reward:.3f} (version {version})" for version, reward in rewards]
    if len(parts) > _SHOWN_EVALUATIONS:
        parts[1 : 1 - _SHOWN_EVALUATIONS] = ["…"]
    return ", ".join(parts)


def _step_lines(run: RunFacts) -> Iterator[tuple[str, str]]:
    recent = run.steps[-10:]
    tokens = sum(step.generated_tokens for step in run.steps)
    seconds = sum(step.step_s for step in run.steps)
    mean = sum(step.mean_tokens for step in recent) / len(recent)
    cut = sum(step.truncated_share for step in recent) / len(recent)
    greatest = max(step.staleness_max for step in run.steps)
    yield "speed", f"{tokens / max(seconds, 1e-9):,.0f} tokens/s, {duration(seconds / len(run.steps))} a step"
    yield "responses", f"{mean:.0f} tokens in the last {len(recent)} steps, {cut:.0%} cut at the limit"
    yield (
        "staleness",
        staleness_words(
            run.staleness_mean, run.staleness_least, greatest=greatest, allowed=run.max_staleness
        ),
    )
    if skipped := run.state.skipped:
        why = ", ".join(f"{number} ({SKIP_WORDS[reason]})" for reason, number in skipped.items())
        yield "without groups", f"{sum(skipped.values())} of {run.state.version} versions: {why}"
    busy = f"trainer {1 - run.trainer_idle_fraction:.0%}, instances {1 - run.instance_idle_fraction:.0%}"
    # Shares and waits are of the same stretch of time: the wait for the first batch stands by itself.
    before = run.steps[0].starved_s
    starved = f"starved {duration(run.starved_s - before)} (and {duration(before)} before it)"
    yield "busy", f"{busy} from the first batch on; {starved}, window {duration(run.window_stall_s)}"
    yield from seconds_lines(run.seconds)


def _trouble_lines(run: RunFacts) -> Iterator[tuple[str, str]]:
    """Lines about what failed and was survived: rewards, workers, replayed steps."""
    state = run.state
    for failure in state.failures:
        yield "rewards failed", f"{failure.count:,} by {failure.name}, the first time {failure.example}"
    for fault in state.faults:
        times = "1 time" if fault.count == 1 else f"{fault.count:,} times"
        yield "workers died", f"{fault.worker}: {times}, the last time {fault.last_reason}"
    if state.num_replays:
        steps = "1 step" if state.num_replays == 1 else f"{state.num_replays:,} steps"
        differ = f"{state.num_different:,} values differ" if state.num_different else "no value differs"
        yield "trained again", f"{steps} after restarts; {differ} from what was published"


def _left(run: RunFacts) -> str:
    remaining = left_s(run.steps, run.recipe.steps) if run.condition == "running" else None
    return f", about {duration(remaining)} left" if remaining else ""
