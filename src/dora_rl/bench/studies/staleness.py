"""Study `staleness`: what the bound S and the number of active groups R do to step time and staleness.

S is only the hard bound; R sets the typical staleness and the throughput. The last column lets the
controller find R.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.core.struct_loader import to_dict
from dora_rl.observe.pictures.look import INK, VERSIONS, figure, headline, plain
from dora_rl.observe.tables import Cell, table
from dora_rl.sim.simulated_run import Result
from dora_rl.sim.simulation_setup import complete, resolve

BOUNDS = (1, 2, 3, 4)
RATIOS = (1.25, 1.5, 2.0, 2.5, 3.0)


class StalenessRow(Record, frozen=True):
    """The result at one bound S and one number of active groups R."""

    max_staleness: int
    ratio: float | None
    """R / B; None where the controller found it."""
    result: Result


def grid() -> list[tuple[int, float | None]]:
    """Bounds S and ratios R / B that make sense together: R of at most S + 1 batches."""
    return [
        (bound, ratio) for bound in BOUNDS for ratio in (*RATIOS, None) if ratio is None or ratio <= bound + 1
    ]


def recipes(preset: str, *, steps: int, seed: int) -> list[Recipe]:
    return [_recipe(preset, bound, ratio, steps, seed) for bound, ratio in grid()]


def rows(results: Sequence[Result]) -> list[StalenessRow]:
    return [
        StalenessRow(max_staleness=bound, ratio=ratio, result=result)
        for (bound, ratio), result in zip(grid(), results, strict=True)
    ]


def _recipe(preset: str, bound: int, ratio: float | None, steps: int, seed: int) -> Recipe:
    base = resolve(preset=preset)
    # The first version's stragglers hold up the batch that is their last: S + 1 steps fill the pipeline.
    warmup = min(max(base.simulation.warmup_steps, bound + 1), steps - 1)
    asked = {
        "control.schedule": "dora",
        "max_staleness": bound,
        "steps": steps,
        "seed": seed,
        "warmup_steps": warmup,
        "active_groups": "null" if ratio is None else round(ratio * base.batch.groups),
    }
    return complete(resolve(preset=preset, assignments=[f"{key}={value}" for key, value in asked.items()]))


def show(rows: Sequence[StalenessRow]) -> Table:
    columns = (">step s", ">of limit", ">mean staleness", ">max", ">trainer waits", ">window stall s")
    made = table("Bound S, active groups R", ">S", ">R / B", *columns)
    for row in rows:
        r = row.result
        made.add_row(
            str(row.max_staleness),
            f"{row.ratio:.2f}" if row.ratio else f"found {r.active_groups / r.batch_groups:.2f}",
            f"{r.step_time_s:,.0f}",
            f"{r.share_of_limit:.1%}",
            f"{r.staleness_mean:.2f}",
            str(r.staleness_max),
            f"{r.trainer_idle_fraction:.0%}",
            f"{r.window_stall_s:,.0f}",
            end_section=row.ratio is None,
        )
    return made


def flat(row: StalenessRow) -> dict[str, Cell]:
    return {"ratio": row.ratio, **to_dict(row.result), "share_of_limit": row.result.share_of_limit}


def draw(rows: Sequence[StalenessRow]) -> Figure:
    fig = figure(11, 4.6)
    headline(fig, _finding(rows))
    times, staleness = fig.subplots(1, 2)
    plain(times, title="seconds a step", x="active groups, R / B")
    plain(staleness, title="mean staleness of what is trained on", x="active groups, R / B")
    for bound, colour in zip(BOUNDS, VERSIONS, strict=False):
        of_bound = [row for row in rows if row.max_staleness == bound]
        _draw_line(times, [(_ratio(row), row.result.step_time_s) for row in of_bound], of_bound, colour)
        _draw_line(
            staleness, [(_ratio(row), row.result.staleness_mean) for row in of_bound], of_bound, colour
        )
    limit_s = min(row.result.limit_s for row in rows)
    times.axhline(limit_s, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    times.annotate(f"limit {limit_s:,.0f}", (1.0, limit_s), (0, -11), xycoords=("axes fraction", "data"),
                   textcoords="offset points", ha="right", fontsize=9, color=INK)  # fmt: skip
    times.set_ylim(bottom=0.8 * limit_s)
    times.legend(title="bound S (diamond: R found by the controller)", title_fontsize=9, fontsize=9, ncols=4,
                 frameon=False, loc="upper right")  # fmt: skip
    return fig


def _draw_line(
    axes: Axes, points: Sequence[tuple[float, float]], rows: Sequence[StalenessRow], colour: str
) -> None:
    bound = rows[0].max_staleness
    fixed = [point for point, row in zip(points, rows, strict=True) if row.ratio is not None]
    found = [point for point, row in zip(points, rows, strict=True) if row.ratio is None]
    axes.plot(*zip(*fixed, strict=True), color=colour, marker="o", markersize=4, label=str(bound))
    # Several bounds may find the same R: the smaller bound then shows around the greater.
    axes.plot(*zip(*found, strict=True), color=colour, marker="D", markersize=18 - 3 * bound,
              markeredgecolor="white", markeredgewidth=0.6, linestyle="none")  # fmt: skip


def _ratio(row: StalenessRow) -> float:
    return row.ratio or row.result.active_groups / row.result.batch_groups


def _finding(rows: Sequence[StalenessRow]) -> str:
    """The sentence about the smallest bound at which the controller is within 5 % of the limit."""
    found = [row for row in rows if row.ratio is None]
    enough = [row for row in found if row.result.share_of_limit >= 0.95] or [
        max(found, key=lambda row: row.result.share_of_limit)
    ]
    r = enough[0].result
    share = f"{r.share_of_limit:.0%} of the limit"
    return f"S = {r.max_staleness} reaches {share}, at a mean staleness of {r.staleness_mean:.1f}"
