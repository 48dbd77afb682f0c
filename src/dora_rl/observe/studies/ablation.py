"""Study `ablation`, shown: what each part is worth, where training and where generation is the bottleneck."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dora_rl.core.loading import to_dict
from dora_rl.observe.pictures.look import BLUE, INK, ORANGE, figure, headline, plain
from dora_rl.observe.tables import Cell, table
from dora_rl.sim.run import Result
from dora_rl.sim.studies.ablation import Row

_MOST = 0.6
"""Longer bars are cut, and say how long they are."""


def show(rows: Sequence[Row]) -> Table:
    first = rows[0]
    made = table(
        "One part switched off at a time: "
        f"{first.plenty.rollout_gpus} and {first.scarce.rollout_gpus} of {first.plenty.gpus} GPUs generate",
        "part", "instead", ">step s", ">change", ">step s", ">change", ">trainer waits", ">window stall s",
        ">moves", ">KV GB",
        caption="the last four columns are those of the second division",
    )  # fmt: skip
    for row in rows:
        r = row.scarce
        made.add_row(
            row.variant.part,
            row.variant.change,
            *_times(row.plenty, first.plenty),
            *_times(r, first.scarce),
            f"{r.trainer_idle_fraction:.0%}",
            f"{r.window_stall_s:,.0f}",
            f"{r.migrations:,}",
            f"{r.kv_bytes_moved / 1e9:,.0f}",
            end_section=row is first,
        )
    return made


def _times(result: Result, base: Result) -> tuple[str, str]:
    return f"{result.step_time_s:,.0f}", f"{_change(result, base):+.1%}"


def _change(result: Result, base: Result) -> float:
    return result.step_time_s / base.step_time_s - 1.0


def flat(row: Row) -> list[dict[str, Cell]]:
    """Two lines, one for each division of the devices."""
    names: dict[str, Cell] = {"part": row.variant.part, "change": row.variant.change}
    return [{**names, **to_dict(result)} for result in (row.plenty, row.scarce)]


def draw(rows: Sequence[Row]) -> Figure:
    first, *others = rows
    fig = figure(11, 1.3 + 0.42 * len(others))
    headline(fig, _finding(rows))
    axes = fig.subplots()
    plain(axes, x="change of the step time, per cent")
    plenty, scarce = first.plenty, first.scarce
    label = f"{plenty.rollout_gpus} GPUs generate: the trainer is the bottleneck"
    _draw_bars(axes, [_change(row.plenty, plenty) for row in others], -0.2, BLUE, label)
    label = f"{scarce.rollout_gpus} GPUs generate: generation is"
    _draw_bars(axes, [_change(row.scarce, scarce) for row in others], +0.2, ORANGE, label)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.margins(x=0.08)
    axes.set_yticks(range(len(others)), [f"{row.variant.part}: {row.variant.change}" for row in others])
    axes.invert_yaxis()
    axes.legend(fontsize=9, frameon=False, loc="lower right")
    return fig


def _draw_bars(axes: Axes, changes: Sequence[float], offset: float, colour: str, label: str) -> None:
    places = [i + offset for i in range(len(changes))]
    lengths = [100 * min(change, _MOST) for change in changes]
    axes.barh(places, lengths, height=0.38, color=colour, label=label)
    for place, length, change in zip(places, lengths, changes, strict=True):
        offset_points, anchor = (-4, "right") if length < 0 else (4, "left")
        axes.annotate(f"{change:+.0%}", (length, place), (offset_points, 0), textcoords="offset points",
                      fontsize=8, va="center", ha=anchor, color=INK)  # fmt: skip


def _finding(rows: Sequence[Row]) -> str:
    """What the parts that can simply be switched off are worth, the dearest first."""
    worth = [
        (_change(row.scarce, rows[0].scarce), row.variant.part) for row in rows if row.variant.change == "off"
    ]
    costs = ", ".join(f"{part} {change:.0%}" for change, part in sorted(worth, reverse=True))
    return f"Worth most of a step where generation is the bottleneck: {costs}"
