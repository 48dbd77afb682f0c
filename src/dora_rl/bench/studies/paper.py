"""Study `paper`: the table of the DORA paper (arXiv 2604.26256), ours beside it.

One calibration for both sizes. One cell cannot fit: one_step_off at 128 GPUs, derived as 840 s, lies below
the 886 s that the longest trajectory alone takes in the paper's own synchronous row, and one_step_off waits
for the longest of each batch.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.console import Group
from rich.table import Table

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.core.struct_loader import to_dict
from dora_rl.costs.seconds_meter import SecondsMeter
from dora_rl.observe.pictures.look import BLUE, GREY, INK, PALE, SKY, figure, headline, plain
from dora_rl.observe.pictures.seconds_picture import RunSeconds, draw_runs
from dora_rl.observe.pictures.timeline_picture import Panel, draw_timelines
from dora_rl.observe.tables import Cell, table
from dora_rl.observe.timeline import Timeline, Tracker
from dora_rl.sim.simulated_run import Result, measured_steps, simulate
from dora_rl.sim.simulation_setup import complete, resolve

SIZES = (64, 128)
SCHEDULES = ("sync", "one_step_off", "partial", "dora_onset", "dora")


class TimelineExcerpt(Record, frozen=True):
    """A run whose timeline is drawn: so many steps, from the first with a full pipeline."""

    steps: int
    first_step: int


SHOWN = {
    "sync": TimelineExcerpt(steps=3, first_step=1),
    "dora_onset": TimelineExcerpt(steps=10, first_step=5),
    "dora": TimelineExcerpt(steps=13, first_step=5),
}


class PaperCell(Record, frozen=True):
    """One cell of the paper's table: step time, speed and share of rollout alone."""

    step_s: float
    tokens_per_s: float
    rollout_only: float | None = None
    is_reachable: bool = True


PUBLISHED = {
    ("sync", 64): PaperCell(step_s=22.91 * 60, tokens_per_s=14_143, rollout_only=0.65),
    ("sync", 128): PaperCell(step_s=20.23 * 60, tokens_per_s=16_070, rollout_only=0.73),
    ("one_step_off", 64): PaperCell(step_s=22.94 * 60, tokens_per_s=14_141, rollout_only=0.33),
    ("one_step_off", 128): PaperCell(step_s=14.0 * 60, tokens_per_s=23_290, is_reachable=False),
    ("partial", 64): PaperCell(step_s=17.38 * 60, tokens_per_s=19_872, rollout_only=0.46),
    ("partial", 128): PaperCell(step_s=13.95 * 60, tokens_per_s=30_683),
    ("dora_onset", 64): PaperCell(step_s=14.67 * 60, tokens_per_s=23_327, rollout_only=0.12),
    ("dora_onset", 128): PaperCell(step_s=10.46 * 60, tokens_per_s=34_135, rollout_only=0.24),
}
"""The paper's DORA starts new prompts only at the onset of a step: our `dora_onset`."""


class PaperRow(Record, frozen=True):
    """Our result of one schedule on one size of cluster, beside the paper's."""

    result: Result
    sync_step_s: float
    published: PaperCell | None = None

    @property
    def deviation(self) -> float | None:
        """Relative difference of our step time from the paper's."""
        return self.result.step_time_s / self.published.step_s - 1.0 if self.published else None

    @property
    def speed_up(self) -> float:
        return self.sync_step_s / self.result.step_time_s


def recipes(*, steps: int, seed: int) -> list[Recipe]:
    return [_recipe(schedule, gpus, steps, seed) for gpus in SIZES for schedule in SCHEDULES]


def shown_recipes(*, seed: int) -> list[Recipe]:
    """The runs whose timelines are drawn, at the smaller size: its instances are few enough to tell apart."""
    return [_recipe(schedule, SIZES[0], shown.steps, seed) for schedule, shown in SHOWN.items()]


def rows(results: Sequence[Result]) -> list[PaperRow]:
    sync_s = {result.gpus: result.step_time_s for result in results if result.schedule == "sync"}
    return [
        PaperRow(
            result=result,
            sync_step_s=sync_s[result.gpus],
            published=PUBLISHED.get((result.schedule, result.gpus)),
        )
        for result in results
    ]


def _recipe(schedule: str, gpus: int, steps: int, seed: int) -> Recipe:
    asked = [f"control.schedule={schedule}", f"steps={steps}", f"seed={seed}"]
    return complete(resolve(preset=f"paper-{gpus}", assignments=asked))


_NAMES = {
    "sync": "sync",
    "one_step_off": "one step off",
    "partial": "partial rollout",
    "dora_onset": "DORA as published",
    "dora": "dora, S = 3",
}
_OURS = (BLUE, SKY)
_PAPERS = (GREY, PALE)
_CAPTION = (
    "* derived, and less than the 886 s of the longest trajectory in the paper's sync row:\n"
    "  no schedule that waits for the longest of each batch can reach it"
)


def show(rows: Sequence[PaperRow]) -> Group:
    return Group(_beside_the_paper(rows), _among_themselves(rows))


def _beside_the_paper(rows: Sequence[PaperRow]) -> Table:
    columns = (">step s", ">paper", ">deviation", ">rollout only", ">paper", ">tokens/s", ">paper")
    title = "Ours beside the paper's (arXiv 2604.26256): one calibration for both sizes"
    made = table(title, ">GPUs", "schedule", *columns, caption=_CAPTION)
    for row in rows:
        r, p = row.result, row.published
        if p is not None:
            made.add_row(
                str(r.gpus),
                _NAMES[r.schedule],
                f"{r.step_time_s:,.0f}",
                f"{p.step_s:,.0f}{'' if p.is_reachable else '*'}",
                f"{row.deviation:+.1%}",
                f"{r.rollout_only_fraction:.0%}",
                f"{p.rollout_only:.0%}" if p.rollout_only else "-",
                f"{r.tokens_per_s:,.0f}",
                f"{p.tokens_per_s:,.0f}",
                end_section=r.schedule == "dora_onset",
            )
    return made


def _among_themselves(rows: Sequence[PaperRow]) -> Table:
    columns = (">step s", ">x sync", ">of limit", ">mean staleness", ">max", ">lost", ">twice", ">mixed")
    made = table("The schedules beside each other", ">GPUs", "schedule", *columns)
    for row in rows:
        r = row.result
        made.add_row(
            str(r.gpus),
            _NAMES[r.schedule],
            f"{r.step_time_s:,.0f}",
            f"{row.speed_up:.2f}",
            f"{r.share_of_limit:.1%}",
            f"{r.staleness_mean:.2f}",
            str(r.staleness_max),
            str(r.lost_trajectories),
            str(r.duplicated_trajectories),
            f"{r.mixed_version_trajectories:,}",
            end_section=r.schedule == "dora",
        )
    return made


def flat(row: PaperRow) -> dict[str, Cell]:
    p = row.published
    return {
        **to_dict(row.result),
        "paper_step_time_s": p.step_s if p else None,
        "paper_rollout_only_fraction": p.rollout_only if p else None,
        "paper_tokens_per_s": p.tokens_per_s if p else None,
        "deviation": row.deviation,
        "speed_up": row.speed_up,
        "share_of_limit": row.result.share_of_limit,
    }


# --- bars ---------------------------------------------------------------------------------------


def draw_bars(rows: Sequence[PaperRow]) -> Figure:
    fig = figure(12, 4.6)
    best = [row for row in rows if row.result.schedule == "dora"]
    gains = " and ".join(f"{row.speed_up:.1f}x at {row.result.gpus} GPUs" for row in best)
    shares = " and ".join(f"{row.result.share_of_limit:.0%}" for row in best)
    headline(fig, f"dora against sync: {gains}, at {shares} of the zero-bubble limit")
    for axes, gpus in zip(fig.subplots(1, len(SIZES), sharey=True), SIZES, strict=True):
        _draw_size(axes, [row for row in rows if row.result.gpus == gpus])
    fig.axes[0].set_ylabel("seconds a step", fontsize=10, color=INK)
    fig.axes[-1].legend(handles=_legend(), fontsize=9, frameon=False, loc="upper right")
    return fig


def _draw_size(axes: Axes, rows: Sequence[PaperRow]) -> None:
    plain(axes, title=f"{rows[0].result.gpus} GPUs")
    for i, row in enumerate(rows):
        r, p = row.result, row.published
        _bar(axes, i - 0.2 if p else i, r.step_time_s, r.rollout_only_fraction, _OURS)
        if p:
            _bar(axes, i + 0.2, p.step_s, p.rollout_only, _PAPERS, mark="" if p.is_reachable else "*")
    limit_s = min(row.result.limit_s for row in rows)
    axes.axhline(limit_s, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.annotate(f"limit\n{limit_s:,.0f}", (1.01, limit_s), xycoords=("axes fraction", "data"),
                  va="center", fontsize=9, color=INK)  # fmt: skip
    axes.set_xticks(range(len(rows)), [_NAMES[row.result.schedule].replace(" ", "\n", 1) for row in rows])


def _bar(
    axes: Axes, x: float, step_s: float, rollout_only: float | None, colours: tuple[str, str], mark: str = ""
) -> None:
    """Draw a step as a bar: training below, rollout alone above; an outline if it is not divided."""
    deep, pale = colours
    if rollout_only is None:
        axes.bar(x, step_s, width=0.35, facecolor="white", edgecolor=deep)
    else:
        idle_s = rollout_only * step_s
        axes.bar(x, step_s - idle_s, width=0.36, color=deep)
        axes.bar(x, idle_s, bottom=step_s - idle_s, width=0.36, color=pale)
    axes.text(x, step_s + 12, f"{step_s:,.0f}{mark}", ha="center", va="bottom", fontsize=9, color=INK)


def _legend() -> list[Patch]:
    return [
        Patch(color=_OURS[0], label="ours: the trainer trains"),
        Patch(color=_OURS[1], label="ours: rollout only"),
        Patch(color=_PAPERS[0], label="paper: the trainer trains"),
        Patch(color=_PAPERS[1], label="paper: rollout only"),
        Patch(facecolor="white", edgecolor=_PAPERS[0], label="paper: not reported which"),
        Patch(facecolor="none", edgecolor="none", label="* less than its longest trajectory takes"),
    ]


# --- seconds ------------------------------------------------------------------------------------


def accounted(recipe: Recipe) -> tuple[Result, RunSeconds]:
    """Simulate a recipe, and account for the seconds of the steps that count."""
    meter = SecondsMeter(batch_groups=recipe.batch.groups, group_size=recipe.batch.group_size)
    result = simulate(recipe, [meter.watch])
    (first, last), seconds = measured_steps(recipe), meter.result()
    name = f"{_NAMES[recipe.control.schedule]}\nmean staleness {result.staleness_mean:.2f}"
    steps = seconds.steps[first:last]
    return result, RunSeconds(name=name, steps=steps, num_instances=seconds.num_instances)


def draw_seconds(results: Sequence[Result], runs: Sequence[RunSeconds]) -> Figure:
    """The schedules side by side at the greater size: what a step's seconds went to."""
    shown = [run for result, run in zip(results, runs, strict=True) if result.gpus == SIZES[-1]]
    return draw_runs(shown, title=f"What a step's seconds go to, on {SIZES[-1]} GPUs")


# --- timelines ----------------------------------------------------------------------------------


def trace(recipe: Recipe) -> Timeline:
    """Simulate a recipe and keep its timeline."""
    tracker = Tracker()
    simulate(recipe, [tracker.watch])
    return tracker.timeline()


def draw_shown(recipes: Sequence[Recipe], timelines: Sequence[Timeline]) -> Figure:
    """The schedules side by side for as long as the first one's last two steps took, pipelines full."""
    length_s = timelines[0].published[-1] - timelines[0].published[-3]
    panels = [_panel(recipe, timeline) for recipe, timeline in zip(recipes, timelines, strict=True)]
    made = [f"{length_s / _interval_s(panel):.1f}" for panel in panels[1:]]
    title = f"In the time of two synchronous steps, DORA makes {made[0]}, and {made[-1]} if it never waits"
    return draw_timelines(panels, length_s, title=title)


def _panel(recipe: Recipe, timeline: Timeline) -> Panel:
    schedule = recipe.control.schedule
    return Panel(
        title=_NAMES[schedule],
        gpus=recipe.cluster.gpus,
        timeline=timeline,
        begin=timeline.published[SHOWN[schedule].first_step - 1],
    )


def _interval_s(panel: Panel) -> float:
    """Seconds from one version to the next, from where the picture begins to where the run runs dry."""
    later = [at for at in panel.timeline.published if at >= panel.begin]
    steady = later[: max(2, len(later) - 3)]
    return (steady[-1] - steady[0]) / (len(steady) - 1)
