"""Study `scale`: does the algorithm hold its share of the limit from 64 to 16,384 GPUs?

The batch grows with the devices, four groups a GPU, so a perfect system's step time would not change.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.core.struct_loader import to_dict
from dora_rl.observe.pictures.look import BLUE, GREY, INK, figure, headline, plain
from dora_rl.observe.tables import Cell, table
from dora_rl.sim.simulated_run import Result
from dora_rl.sim.simulation_setup import complete, resolve

MOST_GPUS = 16_384
_FEWEST_GPUS = 64
_GROUPS_A_GPU = 4
_FEWEST_STEPS = 10
_STEPS_SHRINK_ABOVE = 512
"""Number of GPUs above which runs have fewer steps: they have more groups to average over."""


class ScaleRow(Record, frozen=True):
    """The result at one size, and the seconds that simulating it took."""

    result: Result
    wall_s: float
    """Wall-clock seconds that simulating this size took."""


def sizes(most_gpus: int) -> list[int]:
    """Numbers of GPUs, doubling from the smallest to the greatest asked for."""
    count = max(1, (most_gpus // _FEWEST_GPUS).bit_length())
    return [_FEWEST_GPUS * 2**i for i in range(count)]


def recipe(gpus: int, *, steps: int, seed: int) -> Recipe:
    enough = max(_FEWEST_STEPS, steps * _STEPS_SHRINK_ABOVE // gpus)
    asked = {
        "gpus": gpus,
        "batch.groups": _GROUPS_A_GPU * gpus,
        "rows": 8 * _GROUPS_A_GPU * gpus,
        "steps": min(steps, enough),
        "seed": seed,
    }
    return complete(resolve(preset="scale", assignments=[f"{key}={value}" for key, value in asked.items()]))


_GOOD = 0.9


def show(rows: Sequence[ScaleRow]) -> Table:
    columns = (">step s", ">of limit", ">mean staleness", ">max", ">trained", ">lost", ">simulated in s")
    made = table(
        "Schedule dora, S = 3, four groups a GPU", ">GPUs", ">instances", ">groups", ">steps", *columns
    )
    for row in rows:
        r = row.result
        made.add_row(
            f"{r.gpus:,}",
            f"{r.instances:,}",
            f"{r.batch_groups:,}",
            str(r.steps),
            f"{r.step_time_s:,.0f}",
            f"{r.share_of_limit:.1%}",
            f"{r.staleness_mean:.2f}",
            str(r.staleness_max),
            f"{r.trained_trajectories:,}",
            str(r.lost_trajectories),
            f"{row.wall_s:,.1f}",
        )
    return made


def flat(row: ScaleRow) -> dict[str, Cell]:
    return {**to_dict(row.result), "share_of_limit": row.result.share_of_limit, "wall_s": row.wall_s}


def draw(rows: Sequence[ScaleRow]) -> Figure:
    fig = figure(10, 4.2)
    worst = min(row.result.share_of_limit for row in rows)
    headline(
        fig,
        f"From {rows[0].result.gpus} to {rows[-1].result.gpus:,} GPUs: never below {worst:.0%} of the limit",
    )
    shares, walls = fig.subplots(1, 2)
    _draw_shares(shares, rows)
    _draw_walls(walls, rows)
    for axes in (shares, walls):
        axes.set_xscale("log", base=2)
        axes.set_xticks([row.result.gpus for row in rows], [_short(row.result.gpus) for row in rows])
        axes.minorticks_off()
    return fig


def _draw_shares(axes: Axes, rows: Sequence[ScaleRow]) -> None:
    plain(axes, title="share of the zero-bubble limit", x="GPUs")
    shares = [100 * row.result.share_of_limit for row in rows]
    axes.plot([row.result.gpus for row in rows], shares, color=BLUE, marker="o", markersize=5)
    axes.axhline(100 * _GOOD, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_ylim(min(80.0, min(shares) - 5), 104)
    axes.yaxis.set_major_formatter("{x:.0f} %")
    for row, share in zip(rows, shares, strict=True):
        place = (row.result.gpus, share)
        axes.annotate(
            f"{share:.0f}", place, (0, 7), textcoords="offset points", ha="center", fontsize=9, color=INK
        )


def _draw_walls(axes: Axes, rows: Sequence[ScaleRow]) -> None:
    plain(axes, title="microseconds to simulate a trajectory", x="GPUs")
    costs = [1e6 * row.wall_s / row.result.trained_trajectories for row in rows]
    axes.plot([row.result.gpus for row in rows], costs, color=BLUE, marker="o", markersize=5)
    axes.set_ylim(0, 1.3 * max(costs))


def _short(gpus: int) -> str:
    return str(gpus) if gpus < 1024 else f"{gpus // 1024}K"
