"""The pictures of a report: figures, as SVG text that stands in the page, or as files."""

import re
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from statistics import fmean

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dora_rl.core.visible_text import visible
from dora_rl.observe.live.event_facts import StepFacts
from dora_rl.observe.live.metrics_tail import Metrics
from dora_rl.observe.live.step_words import curves_by_function
from dora_rl.observe.pictures.look import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PINK,
    RED,
    VERSIONS,
    figure,
    plain,
    save,
)
from dora_rl.observe.pictures.seconds_picture import draw_seconds
from dora_rl.observe.pictures.timeline_picture import Panel, draw_timelines
from dora_rl.observe.report.run_facts import RunFacts

_TRAINER_METRICS = ("entropy", "grad_norm", "kl", "clip_ratio/high_mean", "logprob_gap/mean", "learning_rate")
_CLOSE_UP = 8
"""Number of last steps whose timeline is also drawn by itself."""
_FEW = 40
"""Number of steps up to which points of a curve are marked."""
_MANY = 300
"""Number of steps up to which each is drawn by itself; of more, stretches are, and no timeline of all."""

Points = list[tuple[int, float]]
"""A curve: versions and values."""


def plots(run: RunFacts) -> Iterator[tuple[str, Figure]]:
    """Titles and pictures of a run, as far as it has something to show."""
    if run.steps:
        yield "Reward", _rewards(run)
        yield "Lengths, staleness and time", _workings(run)
    if run.seconds.num_instances and run.seconds.wall_s > 0.0:
        yield "Where the seconds went", draw_seconds(run.seconds)
    columns = _columns(run.metrics)
    if columns:
        yield "Inside the trainer", _trainer(columns)
    if run.timeline.specs and run.timeline.end > 0:
        if len(run.timeline.published) <= _MANY:
            yield "Who generated which version when", _timeline(run, 0.0, run.timeline.end)
        if len(run.timeline.published) > 2 * _CLOSE_UP:
            begin, end = run.timeline.published[-_CLOSE_UP - 1], run.timeline.published[-1]
            yield f"The last {_CLOSE_UP} steps", _timeline(run, begin, end)


def write_pictures(run: RunFacts, directory: Path) -> list[Path]:
    """Write each picture of a run as a PNG that is called by its title."""
    return [
        save(fig, directory / f"{re.sub(r'[^a-z0-9]+', '_', title.lower())}.png") for title, fig in plots(run)
    ]


def _rewards(run: RunFacts) -> Figure:
    functions = curves_by_function(run.steps)
    fig = figure(12 if functions else 9, 3.2)
    axes, *others = fig.subplots(1, 2 if functions else 1, squeeze=False)[0]
    plain(axes, title="weighted sum" if functions else "", x="train step", y="reward")
    scored = [step for step in run.steps if step.reward is not None]
    at, means = [step.step for step in scored], [step.reward or 0.0 for step in scored]
    spread = [step.reward_std or 0.0 for step in scored]
    low = [mean - s for mean, s in zip(means, spread, strict=True)]
    high = [mean + s for mean, s in zip(means, spread, strict=True)]
    axes.fill_between(at, low, high, color=PALE, linewidth=0, label="spread within a group")
    axes.plot(at, means, color=BLUE, marker=_marker(at), markersize=3, label="training")
    if run.evaluations:
        versions = [each.version for each in run.evaluations]
        axes.plot(versions, [each.reward for each in run.evaluations], color=ORANGE, marker="o", markersize=4,
                  label="held out")  # fmt: skip
    _finish(axes)
    for own in others:
        _functions(own, functions, curves_by_function(run.evaluations))
    return fig


def _functions(axes: Axes, trained: dict[str, Points], held_out: dict[str, Points]) -> None:
    """Each reward function by itself: training as a line, held-out rows as a dashed one."""
    plain(axes, title="each function, without its weight", x="train step")
    for number, (name, points) in enumerate(trained.items()):
        colour = VERSIONS[number % len(VERSIONS)]
        at, values = zip(*points, strict=True)
        axes.plot(at, values, color=colour, marker=_marker(at), markersize=3, label=_label(name))
        if name in held_out:
            versions, rewards = zip(*held_out[name], strict=True)
            axes.plot(versions, rewards, color=colour, linestyle="--", marker="o", markersize=4,
                      label=_label(f"{name}, held out"))  # fmt: skip
    _finish(axes)


def _label(name: str) -> str:
    """A name as the label of a curve: without formulas, and one that begins with _ is no hidden one."""
    plain_name = visible(name).replace("$", r"\$")
    return f" {plain_name}" if plain_name.startswith("_") else plain_name


def _workings(run: RunFacts) -> Figure:
    fig = figure(12, 3.0)
    lengths, staleness, time = fig.subplots(1, 3)
    size = -(-len(run.steps) // _MANY)
    parts = [run.steps[first : first + size] for first in range(0, len(run.steps), size)]
    at = [fmean(step.step for step in part) for part in parts]
    mean_tokens, mean_staleness = (
        [fmean(getattr(step, name) for step in part) for part in parts]
        for name in ("mean_tokens", "staleness_mean")
    )
    longest = [float(max(step.max_tokens for step in part)) for part in parts]
    greatest = [float(max(step.staleness_max for step in part)) for part in parts]
    _lines(lengths, at, {"mean": mean_tokens, "longest": longest})
    plain(lengths, title="tokens of a response", x="train step")
    _lines(staleness, at, {"mean": mean_staleness, "greatest": greatest})
    staleness.axhline(run.max_staleness, color=RED, linewidth=1, linestyle="--", label="bound")
    plain(staleness, title="staleness of trained groups", x="train step")
    _stack(time, parts, at)
    each = f", mean of {size}" if size > 1 else ""
    plain(time, title=f"seconds of a step{each}", x="train step")
    for axes in (lengths, staleness, time):
        _finish(axes)
    return fig


def _stack(axes: Axes, parts: Sequence[Sequence[StepFacts]], at: Sequence[float]) -> None:
    """What the seconds of a step went to, as a mean over the steps of each part of the run."""

    def means(name: str) -> list[float]:
        return [fmean(getattr(step, name) for step in part) for part in parts]

    shown = {
        "trains": (means("train_s"), GREY),
        "starved": (means("starved_s"), ORANGE),
        "window": (means("window_s"), PINK),
    }
    floor = [0.0] * len(parts)
    for name, (seconds, colour) in shown.items():
        top = [low + s for low, s in zip(floor, seconds, strict=True)]
        # One shape for all steps: of a long run, a bar for each is megabytes.
        _block(axes, at, floor, top, color=colour, label=name)
        floor = top
    axes.plot(at, means("step_s"), color=BLUE, linewidth=1, label="whole step")


def _block(axes: Axes, at: Sequence[float], low: Sequence[float], high: Sequence[float], **look: str) -> None:
    """Bars without a gap between them, as wide as they are apart."""
    half = (at[1] - at[0]) / 2 if len(at) > 1 else 0.5
    edges = [at[0] - half, *(step + half for step in at)]
    axes.fill_between(edges, [low[0], *low], [high[0], *high], step="pre", linewidth=0, **look)  # type: ignore[arg-type]


def _trainer(columns: dict[str, tuple[list[float], list[float]]]) -> Figure:
    fig = figure(12, 2.4)
    for axes, (name, (at, values)) in zip(
        fig.subplots(1, len(columns), squeeze=False)[0], columns.items(), strict=True
    ):
        axes.plot(at, values, color=BLUE, marker=_marker(at), markersize=3)
        plain(axes, title=name, x="train step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    return fig


def _timeline(run: RunFacts, begin: float, end: float) -> Figure:
    panel = Panel(
        title=run.recipe.control.schedule,
        gpus=run.gpus,
        timeline=run.timeline,
        begin=begin,
        unit="process" if run.is_on_cpus else "GPU",
    )
    return draw_timelines([panel], end - begin, title="Instances, coloured by the version they generate")


def _columns(metrics: Sequence[Metrics]) -> dict[str, tuple[list[float], list[float]]]:
    """Steps and values of each of the trainer's metrics that the run wrote."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for name in _TRAINER_METRICS:
        points = [(step, value) for row in metrics
                  if isinstance(step := row.get("step"), int | float)
                  and isinstance(value := row.get(name), int | float)]  # fmt: skip
        if points and any(value for _, value in points):
            found[name] = ([float(step) for step, _ in points], [float(value) for _, value in points])
    return found


def _lines(axes: Axes, at: Sequence[float], curves: dict[str, list[float]]) -> None:
    for (name, values), colour in zip(curves.items(), (BLUE, GREEN), strict=False):
        axes.plot(at, values, color=colour, marker=_marker(at), markersize=3, label=name)


def _marker(at: Sequence[float]) -> str | None:
    return "o" if len(at) <= _FEW else None


def _finish(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    # On white: it may lie over what is drawn.
    axes.legend(fontsize=8, framealpha=0.85, edgecolor="none")


def as_svg(fig: Figure) -> str:
    """A figure as SVG without the head of an XML file; text stays text."""
    text = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        fig.savefig(text, format="svg", bbox_inches="tight", pad_inches=0.1)
    whole = text.getvalue()
    return whole[whole.index("<svg") :]
