"""Study `ablation`: every part of the algorithm switched off, one at a time.

Each variant runs on two divisions of the devices: the preset's, where the trainer is the bottleneck and
little can show, and one with a third fewer generating GPUs, where generation is. A part that costs nothing
in the first and gains in the second is worth having.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.core.struct_loader import build, override, to_dict
from dora_rl.observe.pictures.look import BLUE, INK, ORANGE, figure, headline, plain
from dora_rl.observe.tables import Cell, table
from dora_rl.sim.simulated_run import Result
from dora_rl.sim.simulation_setup import complete, resolve

_PLACEMENTS = ("auto", "exclusive", "shared")


class AblatedPart(Record, frozen=True):
    """One change: which part of the algorithm, and what is done to it."""

    part: str
    change: str
    assignments: tuple[str, ...] = ()


class AblationRow(Record, frozen=True):
    """The results with one part switched off, on both divisions of the devices."""

    variant: AblatedPart
    plenty: Result
    """Result on the preset's division of the devices."""
    scarce: Result
    """Result with a third fewer generating GPUs."""


def variants(recipe: Recipe) -> list[AblatedPart]:
    """The whole algorithm first, then one variant for each change."""
    control, double = recipe.control, f"active_groups={2 * recipe.batch.groups}"
    tensor_parallel = recipe.cluster.tensor_parallel or 1
    changes: list[tuple[str, str, tuple[str, ...]]] = [
        ("everything", "as it is", ()),
        ("KV reuse", "moved requests are prefilled again", ("kv_reuse=false",)),
        ("rebalancing", "off", ("rebalance=false",)),
        ("continuous admission", "only at step onset, R = 2 B", ("control.schedule=dora_onset", double)),
        ("no refill", "older versions are refilled", ("control.refill=true",)),
        *(("placement", name, (f"placement={name}",)) for name in _PLACEMENTS if name != control.placement),
        ("controller of R", "R fixed at 2 B", (double,)),
        ("estimates", "the truth", ("estimates=oracle",)),
        ("estimates", "half of what is true", ("estimates=half",)),
        ("estimates", "twice what is true", ("estimates=double",)),
        ("slots", "half as many", (f"slots={recipe.cluster.slots // 2}",)),
        ("whole batches", "finished groups are streamed", ("control.stream=true",)),
        ("fixed devices", "two training instances elastic", (f"elastic_gpus={2 * tensor_parallel}",)),
    ]  # fmt: skip
    return [AblatedPart(part=part, change=change, assignments=how) for part, change, how in changes]


def recipes(preset: str, *, steps: int, seed: int) -> list[Recipe]:
    """For each variant the run with plenty of generating GPUs, then the one with a third fewer."""
    asked = ["control.schedule=dora", f"steps={steps}", f"seed={seed}"]
    plenty = complete(resolve(preset=preset, assignments=asked))
    scarce = _changed(plenty, [f"rollout_gpus={_scarce(plenty)}"])
    return [_changed(base, v.assignments) for v in variants(plenty) for base in (plenty, scarce)]


def rows(recipes: Sequence[Recipe], results: Sequence[Result]) -> list[AblationRow]:
    return [
        AblationRow(variant=variant, plenty=plenty, scarce=scarce)
        for variant, plenty, scarce in zip(variants(recipes[0]), results[::2], results[1::2], strict=True)
    ]


def _scarce(recipe: Recipe) -> int:
    c = recipe.cluster
    rollout_gpus, tensor_parallel = c.rollout_gpus or 0, c.tensor_parallel or 1
    return max(1, 2 * rollout_gpus // (3 * tensor_parallel)) * tensor_parallel


def _changed(recipe: Recipe, assignments: Sequence[str]) -> Recipe:
    return build(Recipe, override(to_dict(recipe), assignments, Recipe), "ablation")


_MOST = 0.6
"""Longest bar of the picture: longer ones are cut, and say how long they are."""


def show(rows: Sequence[AblationRow]) -> Table:
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


def flat(row: AblationRow) -> list[dict[str, Cell]]:
    """The two lines of a row in the CSV file, one for each division of the devices."""
    names: dict[str, Cell] = {"part": row.variant.part, "change": row.variant.change}
    return [{**names, **to_dict(result)} for result in (row.plenty, row.scarce)]


def draw(rows: Sequence[AblationRow]) -> Figure:
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


def _finding(rows: Sequence[AblationRow]) -> str:
    """The sentence about what each part is worth, the dearest first."""
    worth = [
        (_change(row.scarce, rows[0].scarce), row.variant.part) for row in rows if row.variant.change == "off"
    ]
    costs = ", ".join(f"{part} {change:.0%}" for change, part in sorted(worth, reverse=True))
    return f"Worth most of a step where generation is the bottleneck: {costs}"
