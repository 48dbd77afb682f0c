"""The timeline picture: devices over time, coloured by the version they generate.

Height is GPUs, width is time, so area is GPU time: what is white is wasted. The deeper the colour, the fuller
the instance. On top the trainer: busy, or waiting and for what.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dora_rl.core.record import Record
from dora_rl.observe.pictures.look import INK, RED, VERSIONS, figure, headline, plain
from dora_rl.observe.result_words import count, plural
from dora_rl.observe.timeline import LoadPoint, Timeline, TimelineSpan

_BINS = 1200
_DEPTH = 0.6
"""Exponent from occupancy to depth of colour, so that few requests on a large instance are seen."""
_TRAINS = "#6B6B6B"
_HATCH = {"starved": "////", "window": "xxxx", "prompts": "...."}
_STRIP = 0.07
"""Least height of the trainer's band, as a share of all devices."""

_SHORT_S = 180.0
"""Seconds below which the time axis is in seconds, not minutes."""
_WIDE, _NARROW = 0.06, 0.025
"""Shares of the picture's width from which on a step has the label `step 293`, or its number alone."""

Image = NDArray[np.float64]
Window = tuple[float, float]
"""The stretch of a run that is drawn: from and to, in seconds."""


class Panel(Record, frozen=True, gc=True):
    """One run to draw: its name, its devices, its timeline and from when on it is shown."""

    title: str
    gpus: int
    timeline: Timeline
    begin: float = 0.0
    unit: str = "GPU"
    """Name of a device: `GPU`, or `process` on CPUs."""

    @property
    def rollout_gpus(self) -> int:
        return sum(spec.gpus for spec in self.timeline.specs.values())

    @property
    def trainer_gpus(self) -> float:
        return max(self.gpus - self.rollout_gpus, _STRIP * self.gpus)


def draw_timelines(panels: Sequence[Panel], length_s: float, *, title: str) -> Figure:
    """Draw runs one below the other, each for the same length of time."""
    fig = figure(12, 0.9 + 2.8 * len(panels))
    headline(fig, title)
    rows = fig.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(rows, panels, strict=True):
        _draw(axes, panel, (panel.begin, panel.begin + length_s))
    rows[-1].set_xlabel(
        f"{_unit(length_s)[0]} (height is {plural(panels[-1].unit)}: what is white or hatched is wasted)",
        fontsize=10,
        color=INK,
    )
    rows[0].legend(handles=_legend(), ncols=7, fontsize=8, frameon=False, loc="lower right",
                   bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2, handlelength=1.4)  # fmt: skip
    return fig


def _unit(length_s: float) -> tuple[str, float]:
    """The unit of the time axis, and its seconds."""
    return ("seconds", 1.0) if length_s < _SHORT_S else ("minutes", 60.0)


def _draw(axes: Axes, panel: Panel, window: Window) -> None:
    length_s = window[1] - window[0]
    instances, length = panel.rollout_gpus, length_s / _unit(length_s)[1]
    top = instances + panel.trainer_gpus
    plain(axes, title=panel.title)
    image = _image(panel.timeline, window)
    axes.imshow(image, extent=(0, length, 0, instances), aspect="auto", origin="lower",
                interpolation="nearest")  # fmt: skip
    _separate(axes, panel.timeline)
    _draw_trainer(axes, panel.timeline, (instances, panel.trainer_gpus), window)
    axes.set_xlim(0, length)
    axes.set_ylim(0, top)
    axes.set_yticks([instances / 2, instances + panel.trainer_gpus / 2], _labels(panel))
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _labels(panel: Panel) -> list[str]:
    trainer_gpus = panel.gpus - panel.rollout_gpus
    instances = count(panel.rollout_gpus, panel.unit)
    if not trainer_gpus:
        return [f"{instances}:\ngenerate or train", "trainer"]
    return [f"{instances}:\ngenerate", f"{count(trainer_gpus, panel.unit)}:\ntrain"]


def _separate(axes: Axes, timeline: Timeline) -> None:
    """Draw hairlines between instances, while there are few enough to tell apart."""
    if len(timeline.specs) <= 64:
        edges = np.cumsum([spec.gpus for _, spec in sorted(timeline.specs.items())])
        axes.hlines(edges, *axes.get_xlim(), color="white", linewidth=0.6)


def _draw_trainer(axes: Axes, timeline: Timeline, band: tuple[float, float], window: Window) -> None:
    """Draw the trainer's band: steps with numbers, waits by reason, and a line at each publish."""
    _, unit_s = _unit(window[1] - window[0])
    # Bars of a kind are one artist: a run of hundreds of steps is drawn in a second, not in ten.
    trained = list(_visible(timeline.trained, window, unit_s))
    axes.broken_barh([bar for _, bar in trained], band, facecolor=_TRAINS, edgecolor="white", linewidth=1.0)
    for span, (left, width) in trained:
        if label := _label(int(span.what) + 1, width * unit_s / (window[1] - window[0])):
            axes.text(left + width / 2, band[0] + band[1] / 2, label, color="white", fontsize=8, ha="center",
                      va="center")  # fmt: skip
    waited = list(_visible(timeline.waited, window, unit_s))
    for reason, hatch in _HATCH.items():
        bars = [bar for span, bar in waited if span.what == reason]
        axes.broken_barh(bars, band, facecolor="white", edgecolor=RED, hatch=hatch, linewidth=0.0)
    shown = {v: at for v, at in enumerate(timeline.published, start=1) if window[0] <= at <= window[1]}
    axes.vlines([(at - window[0]) / unit_s for at in shown.values()], 0, 1, linewidth=1.0,
                colors=[VERSIONS[version % len(VERSIONS)] for version in shown],
                transform=axes.get_xaxis_transform())  # fmt: skip


def _label(step: int, share: float) -> str:
    """The label of a step that has this share of the width: as much as fits."""
    if share > _WIDE:
        return f"step {step}"
    return str(step) if share > _NARROW else ""


def _visible(
    spans: Sequence[TimelineSpan], window: Window, unit_s: float
) -> Iterator[tuple[TimelineSpan, tuple[float, float]]]:
    """Each span that the window shows, with its visible beginning and length on the axis."""
    for span in spans:
        begin, end = max(span.begin, window[0]), min(span.end, window[1])
        if begin < end:
            yield span, ((begin - window[0]) / unit_s, (end - begin) / unit_s)


# --- the image of the instances -----------------------------------------------------------------


def _image(timeline: Timeline, window: Window) -> Image:
    """The picture of the instances: colours by instance and bin of time, the first instance at the bottom."""
    edges = np.linspace(*window, _BINS + 1)
    rows = []
    for instance, spec in sorted(timeline.specs.items()):
        row = _row(timeline.loads[instance], spec.slots, edges)
        _paint(row, [span for span in timeline.lent if span.what == instance], edges, _TRAINS)
        _paint(row, [span for span in timeline.down if span.what == instance], edges, INK)
        rows.append(row)
    return np.array(rows)


def _row(loads: Sequence[LoadPoint], slots: int, edges: Image) -> Image:
    """The colours of one instance over time: each version's, as deep as it fills the instance."""
    row = np.ones((len(edges) - 1, 3))
    by_version = sorted(loads, key=lambda load: load.version)
    shares = {
        v: _mean(list(of), edges) / slots for v, of in groupby(by_version, key=lambda load: load.version)
    }
    filled = sum(shares.values(), start=np.zeros(len(edges) - 1))
    depth = np.minimum(1.0, filled) ** _DEPTH / np.maximum(filled, 1e-9)
    for version, share in shares.items():
        missing = 1.0 - np.array(to_rgb(VERSIONS[version % len(VERSIONS)]))
        row -= (depth * share)[:, None] * missing[None, :]
    return np.clip(row, 0.0, 1.0)


def _mean(loads: Sequence[LoadPoint], edges: Image) -> Image:
    """Mean number of running requests in each bin of time."""
    at = np.array([0.0, *(load.at for load in loads), max(edges[-1], loads[-1].at)])
    running = np.array([0, *(load.running for load in loads)], dtype=float)
    total = np.concatenate([[0.0], np.cumsum(running * np.diff(at))])
    mean: Image = np.diff(np.interp(edges, at, total)) / np.diff(edges)
    return mean


def _paint(row: Image, spans: Sequence[TimelineSpan], edges: Image, colour: str) -> None:
    for span in spans:
        first, last = np.searchsorted(edges, (span.begin, span.end))
        row[max(0, first - 1) : last] = to_rgb(colour)


def _legend() -> list[Patch | Line2D]:
    full = VERSIONS[0]
    return [
        Patch(facecolor=full, label="generates, one colour a version"),
        Patch(facecolor=full, alpha=0.25, label="few requests left"),
        Line2D([], [], color=full, linewidth=1.0, label="new version"),
        Patch(facecolor=_TRAINS, label="trains"),
        *(Patch(facecolor="white", edgecolor=RED, hatch=hatch, linewidth=0.0, label=label)
          for label, hatch in (("trainer starved", _HATCH["starved"]), ("window stall", _HATCH["window"]),
                               ("no prompts", _HATCH["prompts"]))),
    ]  # fmt: skip
