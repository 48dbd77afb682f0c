"""The staleness grid as a table, as rows of a CSV file and as a picture."""

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dora_rl.bench.learning.staleness_grid import GridCell, GridRun, StalenessGrid
from dora_rl.observe.pictures.look import INK, VERSIONS, figure, headline, plain
from dora_rl.observe.tables import Cell, table

_SMOOTHED = 8
"""Steps over which a curve is averaged in the picture."""
_POINTS = 60


def show(grid: StalenessGrid) -> Table:
    horizon_s = grid.horizon_s
    made = table(
        grid.title,
        "loss", ">staleness", ">measured", ">held out\nbefore", ">\nafter", ">reward\nby step", ">\n+-",
        f">by second\nto {horizon_s:.0f} s", ">\n+-", ">step\ns", ">clipped", ">KL",
        caption="by step, by second: mean reward over all steps, over the seconds of the shortest run; "
        "+-: half the range over the seeds; clipped: share of tokens held at a bound; KL: of the policy "
        "from the one that generated",
    )  # fmt: skip
    for cell in grid.cells:
        made.add_row(*_cells(cell, horizon_s), end_section=cell.staleness == _last(grid, cell.loss))
    return made


def flat(each: GridRun, horizon_s: float) -> dict[str, Cell]:
    before, after = each.gain or (None, None)
    return {
        "loss": each.loss,
        "staleness": each.staleness,
        "seed": each.seed,
        "staleness_measured": each.run.staleness_mean,
        "held_out_before": before,
        "held_out_after": after,
        "reward_by_step": each.reward_by_step,
        "reward_by_second": each.reward_by_second(horizon_s),
        "step_s": each.run.step_s,
        "clip_share": each.run.clip_share,
        "policy_kl": each.run.policy_kl,
    }


def _cells(cell: GridCell, horizon_s: float) -> list[str]:
    def by_second(each: GridRun) -> float:
        return each.reward_by_second(horizon_s)

    gains = [each.gain for each in cell.runs if each.gain is not None]
    shown = [f"{fmean(values):.3f}" for values in zip(*gains, strict=True)] if gains else ["-", "-"]
    return [
        cell.loss,
        str(cell.staleness),
        f"{cell.mean(lambda each: each.run.staleness_mean):.2f}",
        *shown,
        f"{cell.mean(lambda each: each.reward_by_step):.3f}",
        f"{cell.spread(lambda each: each.reward_by_step):.3f}",
        f"{cell.mean(by_second):.3f}",
        f"{cell.spread(by_second):.3f}",
        f"{cell.mean(lambda each: each.run.step_s):.3f}",
        f"{cell.mean(lambda each: each.run.clip_share):.2%}",
        f"{cell.mean(lambda each: each.run.policy_kl):.4f}",
    ]


def _last(grid: StalenessGrid, loss: str) -> int:
    return max(cell.staleness for cell in grid.cells if cell.loss == loss)


# --- the picture --------------------------------------------------------------------------------


def draw(grid: StalenessGrid) -> Figure:
    """Reward by step above, by second below; a column for each loss, a colour for each staleness."""
    losses = grid.losses
    fig = figure(3.6 * len(losses) + 0.6, 6.4)
    headline(fig, "How each loss learns from batches that are exactly so many versions old", grid.title)
    axes = fig.subplots(2, len(losses), sharey=True, squeeze=False)
    levels = sorted({cell.staleness for cell in grid.cells})
    for column, loss in enumerate(losses):
        by_step, by_second = axes[0][column], axes[1][column]
        plain(by_step, title=loss, x="step", y="" if column else "reward")
        plain(by_second, x="seconds", y="" if column else "reward")
        for cell in (each for each in grid.cells if each.loss == loss):
            colour = (*VERSIONS, INK)[levels.index(cell.staleness) % (len(VERSIONS) + 1)]
            _draw_steps(by_step, cell, colour)
            _draw_seconds(by_second, cell, colour, grid.horizon_s)
    axes[0][0].legend(title="staleness", fontsize=8, title_fontsize=8, frameon=False)
    return fig


def _draw_steps(axes: Axes, cell: GridCell, colour: str) -> None:
    curves = [_smooth(each.run.rewards) for each in cell.runs]
    mean = [fmean(at) for at in zip(*curves, strict=True)]
    axes.plot(range(1, len(mean) + 1), mean, color=colour, linewidth=1.4, label=str(cell.staleness))


def _draw_seconds(axes: Axes, cell: GridCell, colour: str, horizon_s: float) -> None:
    seconds = [horizon_s * (point + 1) / _POINTS for point in range(_POINTS)]
    curves = [[_at(each, second) for second in seconds] for each in cell.runs]
    axes.plot(seconds, [fmean(at) for at in zip(*curves, strict=True)], color=colour, linewidth=1.4)


def _at(each: GridRun, second: float) -> float:
    """The smoothed reward of the last step that was published by then."""
    number = sum(at <= second for at in each.run.published_s)
    return _smooth(each.run.rewards)[max(0, number - 1)]


def _smooth(rewards: Sequence[float]) -> list[float]:
    """Mean of each step and those just before it."""
    sums = [0.0, *accumulate(rewards)]
    firsts = [max(0, number - _SMOOTHED) for number in range(1, len(sums))]
    return [(sums[n] - sums[first]) / (n - first) for n, first in enumerate(firsts, start=1)]
