"""The seconds picture: what every second of instances and trainer went to, step by step.

A bar is a step and as high as its wall time, in both panels: what a colour takes of it could at most be won.
Work is filled, waiting is hatched.
"""

from collections.abc import Iterator, Mapping, Sequence
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


_Bar = Sequence[StepSeconds]
"""The steps that one bar is the mean of."""


class _Layer(Record, frozen=True, gc=True):
    """One colour of a panel: its name, its seconds in each bar, and its share of the whole run."""

    label: str
    heights: list[float]
    share: float
    colour: str
    hatch: str = ""


def draw_seconds(seconds: SecondsSpent) -> Figure:
    """Draw the seconds of a run, those of its instances above those of its trainer."""
    fig = figure(12, 6.4)
    headline(fig, seconds_headline(seconds))
    above, below = fig.subplots(2, 1, sharex=True, sharey=True)
    bars = _bars(seconds)
    whose = f"an instance (mean of {seconds.num_instances})" if seconds.num_instances > 1 else "the instance"
    _draw(above, bars, list(_instance_layers(seconds, bars)), title=f"seconds of {whose}")
    _draw(below, bars, list(_trainer_layers(seconds, bars)), title="seconds of the trainer")
    below.set_xlabel("train step", fontsize=10, color=INK)
    return fig


def _bars(seconds: SecondsSpent) -> list[_Bar]:
    """Published steps, several to a bar where there are many; without any, what there is."""
    steps = [step for step in seconds.steps if step.is_published] or seconds.steps
    width = -(-len(steps) // _MOST_BARS)
    return [steps[first : first + width] for first in range(0, len(steps), width)] if steps else []


def _instance_layers(seconds: SecondsSpent, bars: Sequence[_Bar]) -> Iterator[_Layer]:
    total, number, last = sum(seconds.instances.values()), seconds.num_instances, len(_BEHIND) - 1
    for place, colour in enumerate(_BEHIND):
        behind = [b for b in seconds.behind if min(b, last) == place]
        if behind:
            more = " or more" if max(behind) > last else ""
            yield _Layer(
                label=f"generating, {behind_words(place)}{more}",
                heights=[fmean(_sum_of(step.behind, behind) / number for step in bar) for bar in bars],
                share=_sum_of(seconds.behind, behind) / total,
                colour=colour,
            )
    for spent, amount in seconds.instances.items():
        if spent is not Spent.GENERATING:
            heights = [fmean(step.instances.get(spent, 0.0) / number for step in bar) for bar in bars]
            yield _layer(spent, heights, amount / total)


def _trainer_layers(seconds: SecondsSpent, bars: Sequence[_Bar]) -> Iterator[_Layer]:
    for spent, amount in seconds.trainer.items():
        heights = [fmean(step.trainer.get(spent, 0.0) for step in bar) for bar in bars]
        yield _layer(spent, heights, amount / seconds.wall_s)


def _sum_of(seconds: Mapping[int, float], keys: Sequence[int]) -> float:
    return sum(seconds.get(key, 0.0) for key in keys)


def _layer(spent: Spent, heights: list[float], share: float) -> _Layer:
    colour, hatch = _COLOURS.get(spent, "white"), _HATCHES.get(spent, "")
    return _Layer(label=WORDS[spent], heights=heights, share=share, colour=colour, hatch=hatch)


def _draw(axes: Axes, bars: Sequence[_Bar], layers: Sequence[_Layer], *, title: str) -> None:
    plain(axes, title=title, y="seconds a step")
    at = [fmean(step.step for step in bar) for bar in bars]
    pitch = max((len(bar) for bar in bars), default=1)
    floor = [0.0] * len(bars)
    for layer in layers:
        axes.bar(at, layer.heights, bottom=floor, width=0.86 * pitch, **_look(layer))
        floor = [low + height for low, height in zip(floor, layer.heights, strict=True)]
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    if bars:
        axes.set_xlim(at[0] - 0.6 * pitch, at[-1] + 0.6 * pitch)
        _cut(axes, at, floor)
    # The layers as they lie, the uppermost first, each with its share of the whole run.
    legend = [Patch(label=f"{layer.share:.1%} {layer.label}", **_look(layer)) for layer in reversed(layers)]
    axes.legend(handles=legend, fontsize=8.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0),
                handlelength=1.6, labelspacing=0.35)  # fmt: skip


def _look(layer: _Layer) -> dict[str, Any]:
    look: dict[str, Any] = {"facecolor": layer.colour, "linewidth": 0.0}
    return look | {"edgecolor": RED, "hatch": layer.hatch} if layer.hatch else look


def _cut(axes: Axes, at: Sequence[float], heights: Sequence[float]) -> None:
    """Let a few tall bars not flatten the others: cut them and write their height."""
    top = 1.06 * min(max(heights), _TALL * median(heights))
    axes.set_ylim(0.0, top)
    for place, height in zip(at, heights, strict=True):
        if height > top:
            axes.annotate(f"{height:,.0f} s", (place, 0.97 * top), ha="center", va="top", fontsize=8)
