"""Study `episodes`: schedules on the same environments, at the same GPUs.

Two kinds of episodes, both on 64 GPUs: many quick turns in the manner of a text game, and slow turns behind a
slow reset in the manner of software engineering. What each row's environments take, and what the policy
draws, is the same under every rule. Each rule is judged at the fastest of a few divisions of the devices;
sync, whose phases exclude each other, also with all devices in turn. Nothing is cut: all train on the same
episodes. Beside the speed-ups stand those that ROLL Flash (arXiv 2510.11345) reports over its own synchronous
runs, measured on other hardware, models and environments.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure
from rich.table import Table

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.core.struct_loader import to_dict
from dora_rl.observe.pictures.look import BLUE, GREY, INK, ORANGE, SKY, figure, headline, plain
from dora_rl.observe.tables import Cell, table
from dora_rl.sim.simulated_run import Result
from dora_rl.sim.simulation_setup import complete, resolve

_BOUND = 2
"""S of every rule but sync: the asynchronous ratio that ROLL Flash finds usually enough."""
_GROUPS = 32
_SPLITS = (24, 40)
"""GPUs that generate, of 64."""


class EpisodeKind(Record, frozen=True):
    """One kind of episodes: its turns, and what was reported for its like."""

    name: str
    reported: str
    assignments: tuple[str, ...]


class EpisodeRule(Record, frozen=True):
    """One schedule with its knobs, under the name it has in the table."""

    name: str
    assignments: tuple[str, ...]
    takes_turns: bool = False
    """Whether it is also tried with all devices generating and training in turn."""


KINDS = (
    EpisodeKind(
        name="text game: 15 quick turns",
        reported="2.72",
        assignments=(
            "task.prompt_tokens=800",
            "task.lengths.median_tokens=1200",
            "task.lengths.max_tokens=8000",
            "task.turns.mean_turns=15",
            "task.turns.environment_tokens=80",
            "task.turns.latency_s=2",
            "task.turns.latency_sigma=1.3",
            "task.turns.reset_s=5",
        ),
    ),
    EpisodeKind(
        name="software engineering: 20 slow turns",
        reported="1.81",
        assignments=(
            "task.prompt_tokens=2500",
            "task.lengths.median_tokens=4000",
            "task.lengths.max_tokens=24000",
            "task.turns.mean_turns=20",
            "task.turns.environment_tokens=400",
            "task.turns.latency_s=5",
            "task.turns.latency_sigma=1.3",
            "task.turns.reset_s=60",
        ),
    ),
)

RULES = (
    EpisodeRule(name="sync", assignments=("control.schedule=sync",), takes_turns=True),
    EpisodeRule(
        name="async ratio 2", assignments=("control.schedule=async_ratio", f"max_staleness={_BOUND}")
    ),
    EpisodeRule(
        name="async ratio 2, B / 8 redundant",
        assignments=(
            "control.schedule=async_ratio",
            f"max_staleness={_BOUND}",
            f"control.redundant_groups={_GROUPS // 8}",
        ),
    ),
    EpisodeRule(name="dora", assignments=("control.schedule=dora", f"max_staleness={_BOUND}")),
)


class EpisodeRow(Record, frozen=True):
    """A rule's best division of the devices for one kind of episodes, beside sync."""

    kind: EpisodeKind
    rule: EpisodeRule
    result: Result
    speed_up: float


def _cases() -> list[tuple[EpisodeKind, EpisodeRule, str]]:
    return [
        (kind, rule, split)
        for kind in KINDS
        for rule in RULES
        for split in [
            *(f"rollout_gpus={gpus}" for gpus in _SPLITS),
            *(["elastic_gpus=64"] * rule.takes_turns),
        ]
    ]


def recipes(*, steps: int, seed: int) -> list[Recipe]:
    """Every kind of episodes under every rule on every division of the devices."""
    asked = (
        f"steps={steps}",
        f"seed={seed}",
        f"batch.groups={_GROUPS}",
        "episode.function=simulated",
        "control.environment_grace_s=1e6",
    )
    return [
        complete(
            resolve(preset="agentic-64", assignments=[*asked, *kind.assignments, *rule.assignments, split])
        )
        for kind, rule, split in _cases()
    ]


def rows(results: Sequence[Result]) -> list[EpisodeRow]:
    """The fastest division of each rule, with its speed over that of sync."""
    made: list[EpisodeRow] = []
    for kind in KINDS:
        sync_s = 0.0
        for rule in RULES:
            tried = [
                result
                for (a_kind, a_rule, _), result in zip(_cases(), results, strict=True)
                if a_kind is kind and a_rule is rule
            ]
            best = min(tried, key=lambda result: result.step_time_s)
            sync_s = sync_s or best.step_time_s
            made.append(EpisodeRow(kind=kind, rule=rule, result=best, speed_up=sync_s / best.step_time_s))
    return made


def show(rows: Sequence[EpisodeRow]) -> Table:
    made = table(
        f"Episodes at 64 GPUs, the same draws for every rule; S = {_BOUND}",
        "episodes", "rule", ">GPUs generating", ">step s", ">x sync", ">reported", ">mean staleness",
        ">least", ">instances idle", ">discarded",
        caption="reported: ROLL Flash over its own synchronous runs, on other hardware and environments",
    )  # fmt: skip
    for row in rows:
        r = row.result
        made.add_row(
            row.kind.name if row.rule is RULES[0] else "",
            row.rule.name,
            str(r.rollout_gpus) if r.rollout_gpus else "in turn",
            f"{r.step_time_s:,.0f}",
            f"{row.speed_up:.2f}",
            row.kind.reported if row.rule.name.startswith("async") else "",
            f"{r.staleness_mean:.2f}",
            "-" if r.staleness_least is None else f"{r.staleness_least:.2f}",
            f"{r.instance_idle_fraction:.0%}",
            f"{r.closed_trajectories / (r.closed_trajectories + r.trained_trajectories):.0%}",
            end_section=row.rule is RULES[-1],
        )
    return made


def flat(row: EpisodeRow) -> dict[str, Cell]:
    return {
        "kind": row.kind.name,
        "rule": row.rule.name,
        "speed_up": row.speed_up,
        "reported": row.kind.reported,
        **to_dict(row.result),
    }


def draw(rows: Sequence[EpisodeRow]) -> Figure:
    """Step times of all rules for both kinds of episodes, each with its mean staleness."""
    fig = figure(11, 4.5)
    headline(fig, "Seconds a step with the same environments: shorter is better")
    for axes, kind in zip(fig.subplots(1, len(KINDS)), KINDS, strict=True):
        plain(axes, x="seconds a step")
        of_kind = [row for row in rows if row.kind is kind]
        times = [row.result.step_time_s for row in of_kind]
        axes.barh(range(len(of_kind)), times, height=0.6, color=(GREY, SKY, ORANGE, BLUE))
        for place, row in enumerate(of_kind):
            said = f"{row.speed_up:.2f} x, staleness {row.result.staleness_mean:.2f}"
            axes.annotate(said, (times[place], place), (4, 0), textcoords="offset points", fontsize=8,
                          va="center", color=INK)  # fmt: skip
        axes.set_xlim(right=1.5 * max(times))
        axes.set_yticks(range(len(of_kind)), [row.rule.name for row in of_kind])
        axes.invert_yaxis()
        axes.set_title(kind.name, fontsize=9)
    return fig
