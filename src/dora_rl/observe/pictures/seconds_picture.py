"""The seconds picture: what every second of instances and trainer went to, step by step or run by run.

A bar is a step and as high as its wall time, in both panels: what a colour takes of it could at most be won.
Work is filled, waiting is hatched.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from dora_rl.core.record import Record
from dora_rl.costs.seconds_spent import SecondsSpent, Spent, StepSeconds
from dora_rl.observe.pictures.look import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PINK,
    RED,
    SKY,
    figure,
    headline,
    plain,
)
from dora_rl.observe.seconds_words import WORDS, behind_words, seconds_headline

_MOST_BARS = 60
_TALL = 2.5
"""How many times the median a bar may be high before it is cut."""
_BEHIND = ("#004C80", BLUE, SKY, "#A9DAF5", "#D6EEFB")
"""Colours of generating, by how many versions behind; the last for all that are further."""
_COLOURS = {
    Spent.EVALUATING: PINK,
    Spent.TRAINING: "#6B6B6B",
    Spent.PUBLISHING: "#3D3D3D",
    Spent.HANDING_OVER: "#80CDC1",
    Spent.PREFILL: GREEN,
    Spent.RECOMPUTE: ORANGE,
    Spent.KV_MOVES: "#F0E442",
    Spent.WEIGHT_LOADS: "#8C510A",
    Spent.SWITCHING: "#B2ABD2",
    Spent.STARTING: PALE,
    Spent.DOWN: INK,
    Spent.ENDING: "#F4F4F4",
    Spent.OTHER: "#BFB8AD",
}
_HATCHES = {
    Spent.TRAINER: "----",
    Spent.BATCH: "////",
    Spent.WINDOW: "xxxx",
    Spent.ENVIRONMENT: "++++",
    Spent.REWARD: "oooo",
    Spent.PROMPTS: "....",
}


_Key = Spent | int
"""What a colour stands for: a name of seconds, or for generating how many versions behind."""
_Bar = dict[_Key, float]
"""The height of each colour of a bar, in seconds a step."""


class RunSeconds(Record, frozen=True, gc=True):
    """A run that is one bar of a picture: its name, the steps that count, and how many instances it has."""

    name: str
    steps: list[StepSeconds]
    num_instances: int


def draw_seconds(seconds: SecondsSpent) -> Figure:
    """Draw the seconds of a run step by step, those of its instances above those of its trainer."""
    number, steps = seconds.num_instances, [step for step in seconds.steps if step.is_published]
    width = max(1, -(-len(steps) // _MOST_BARS))
    bars = [steps[first : first + width] for first in range(0, len(steps), width)] or [seconds.steps]
    at = [fmean(step.step for step in bar) for bar in bars]
    fig = figure(12, 6.4)
    headline(fig, seconds_headline(seconds))
    above, below = fig.subplots(2, 1, sharex=True, sharey=True)
    whose = f"an instance (mean of {number})" if number > 1 else "the instance"
    _draw(above, at, [_of_instances(bar, number) for bar in bars], width,
          title=f"seconds of {whose}", whole=_of_instances(seconds.steps, number))  # fmt: skip
    _draw(below, at, [_of_trainer(bar) for bar in bars], width,
          title="seconds of the trainer", whole=_of_trainer(seconds.steps))  # fmt: skip
    for axes in (above, below):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    below.set_xlabel("train step", fontsize=10, color=INK)
    return fig


def draw_runs(runs: Sequence[RunSeconds], *, title: str) -> Figure:
    """Draw the mean step of several runs side by side."""
    fig = figure(12, 7.0)
    headline(fig, title)
    above, below = fig.subplots(2, 1, sharex=True, sharey=True)
    at = [float(place) for place in range(len(runs))]
    instances = [_of_instances(run.steps, run.num_instances) for run in runs]
    _draw(above, at, instances, 0.7, title="seconds of an instance")
    _draw(below, at, [_of_trainer(run.steps) for run in runs], 0.7, title="seconds of the trainer")
    below.set_xticks(at, [run.name for run in runs])
    return fig


# --- bars -----------------------------------------------------------------------------------------


def _of_instances(steps: Sequence[StepSeconds], num_instances: int) -> _Bar:
    """The mean seconds of an instance a step; generating by how far behind."""
    seconds: _Bar = defaultdict(float)
    for step in steps:
        for behind, amount in step.behind.items():
            seconds[min(behind, len(_BEHIND) - 1)] += amount
        for spent, amount in step.instances.items():
            if spent is not Spent.GENERATING:
                seconds[spent] += amount
    return {key: amount / (num_instances * len(steps)) for key, amount in seconds.items()}


def _of_trainer(steps: Sequence[StepSeconds]) -> _Bar:
    """The mean seconds of the trainer a step."""
    seconds: _Bar = defaultdict(float)
    for step in steps:
        for spent, amount in step.trainer.items():
            seconds[spent] += amount
    return {key: amount / len(steps) for key, amount in seconds.items()}


def _draw(
    axes: Axes,
    at: Sequence[float],
    bars: Sequence[_Bar],
    width: float,
    *,
    title: str,
    whole: _Bar | None = None,
) -> None:
    """Draw bars of colours, and beside them a legend with each one's share of the whole run, where given."""
    plain(axes, title=title, y="seconds a step")
    found = {key for bar in (*bars, whole or {}) for key in bar}
    keys = [key for key in (*range(len(_BEHIND)), *Spent) if key in found]
    floor = [0.0] * len(bars)
    for key in keys:
        heights = [bar.get(key, 0.0) for bar in bars]
        axes.bar(at, heights, bottom=floor, width=0.86 * width, **_look(key))
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_xlim(at[0] - 0.6 * width, at[-1] + 0.6 * width)
    _cut(axes, at, floor)
    # The colours as they lie, the uppermost first.
    legend = [Patch(label=_share(key, whole) + _label(key), **_look(key)) for key in reversed(keys)]
    axes.legend(handles=legend, fontsize=8.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0),
                handlelength=1.6, labelspacing=0.35)  # fmt: skip


def _cut(axes: Axes, at: Sequence[float], heights: Sequence[float]) -> None:
    """Let a few tall bars not flatten the others: cut them and write their height."""
    top = 1.06 * min(max(heights), _TALL * median(heights))
    axes.set_ylim(0.0, top)
    for place, height in zip(at, heights, strict=True):
        if height > top:
            axes.annotate(f"{height:,.0f} s", (place, 0.97 * top), ha="center", va="top", fontsize=8)


# --- colours --------------------------------------------------------------------------------------


def _look(key: _Key) -> dict[str, Any]:
    if not isinstance(key, Spent):
        return {"facecolor": _BEHIND[key], "linewidth": 0.0}
    if key in _HATCHES:
        return {"facecolor": "white", "linewidth": 0.0, "edgecolor": RED, "hatch": _HATCHES[key]}
    return {"facecolor": _COLOURS[key], "linewidth": 0.0}


def _label(key: _Key) -> str:
    if isinstance(key, Spent):
        return WORDS[key]
    return f"generating, {behind_words(key)}{' or more' if key == len(_BEHIND) - 1 else ''}"


def _share(key: _Key, whole: _Bar | None) -> str:
    return f"{whole.get(key, 0.0) / sum(whole.values()):.1%} " if whole else ""
