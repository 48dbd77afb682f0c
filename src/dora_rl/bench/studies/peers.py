"""Study `peers`: the rules of other papers beside each other, at the same GPUs and slots.

Each rule is a policy of the same control plane, and the same search finds each one's split and R: first the
splits at the greatest R that the bound has a use for, but those that could not be the best even if nobody
ever waited, then every R at the best two of them. The best trial is the fastest, or the freshest among those
within 1 % of it. What else the papers' systems do differs and is left out: a difference between two rows is a
difference of rules.
"""

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure
from msgspec.structs import replace
from rich.table import Table

from dora_rl.bench.studies.length_bias import LengthBias
from dora_rl.bench.studies.peer_rules import RULES, PeerRule
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.core.struct_loader import to_dict
from dora_rl.costs.gpu_memory import fewest_training_gpus
from dora_rl.costs.limit import in_turn, split_times
from dora_rl.observe.pictures.look import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    RED,
    SKY,
    figure,
    headline,
    plain,
)
from dora_rl.observe.tables import Cell, table
from dora_rl.sim.simulated_run import Result, simulate
from dora_rl.sim.simulation_setup import complete, resolve

BOUND = 3
"""S of every rule that has one."""
RATIOS = (1.25, 1.5, 2.0, 3.0, BOUND + 1.0)
SHARES = (1 / 8, 3 / 16, 1 / 4, 5 / 16, 3 / 8, 1 / 2, 5 / 8)
"""Shares of the GPUs that generate; beside them, all of them in turn with training."""
_CLOSE = 1.01
_TIE = 1.02
_SHORT = 0.95
"""Share of a split's shortest step that the lengths drawn may need: trials slower than that are left out."""
_SHORT_ABORTING = 0.7
"""The same for rules that abort: they train on shorter answers, and do not generate all that they start."""


class PeerTrial(Record, frozen=True, gc=True):
    """One rule at one split and one R; `rollout_gpus` is None where devices take turns."""

    rule: str
    rollout_gpus: int | None
    ratio: float | None
    """R / B; None where the rule or a controller has it."""
    recipe: Recipe


class MeasuredTrial(Record, frozen=True):
    """The result of one trial, with what the rule threw away."""

    result: Result
    discarded_share: float
    """Share of the generated tokens that no step trained on."""
    length_bias: float
    """Relative difference of the mean length trained on from the mean length started."""


class PeerTrialRow(Record, frozen=True, gc=True):
    """A trial and its run; `is_best` where it is the one its rule is judged by."""

    trial: PeerTrial
    run: MeasuredTrial
    is_best: bool


# --- the search ---------------------------------------------------------------------------------


def first_trials(preset: str, *, steps: int, seed: int, assignments: Sequence[str] = ()) -> list[PeerTrial]:
    """Every rule at the two splits whose step could be the shortest, R as great as its bound can use."""
    base = _base(preset, steps=steps, seed=seed, assignments=assignments)
    return [trial for rule in RULES for trial in _at_all_splits(base, rule)[:2]]


def other_splits(trials: Sequence[PeerTrial], runs: Sequence[MeasuredTrial]) -> list[PeerTrial]:
    """Every rule at the other splits that could beat, if nobody ever waited, what it was measured at."""
    found = []
    for rule in RULES:
        tried = [(t, r) for t, r in zip(trials, runs, strict=True) if t.rule == rule.name]
        fastest_s = min(r.result.step_time_s for _, r in tried)
        splits = {t.rollout_gpus for t, _ in tried}
        found += [
            trial
            for trial in _at_all_splits(tried[0][0].recipe, rule)
            if trial.rollout_gpus not in splits and least_step_s(trial.recipe) <= fastest_s
        ]
    return found


def least_step_s(recipe: Recipe) -> float:
    """Seconds that a step cannot be shorter than: all training, or every instance full of one version."""
    c, batch = recipe.cluster, recipe.batch
    trained = replace(batch, group_size=batch.group_size - recipe.control.redundant_members)
    trained_recipe = replace(recipe, batch=trained)
    if c.rollout_gpus:
        times = split_times(trained_recipe, c.rollout_gpus, c.tensor_parallel or 1)
    else:
        times = in_turn(trained_recipe, c.tensor_parallel or 1)
    share = _SHORT_ABORTING if recipe.control.aborts else _SHORT
    return share * max(times.train_s, times.generate_s)


def later_trials(trials: Sequence[PeerTrial], runs: Sequence[MeasuredTrial]) -> list[PeerTrial]:
    """Every other R at the best two splits of each rule that has one."""
    found = []
    for rule in RULES:
        tried = [(t, r) for t, r in zip(trials, runs, strict=True) if t.rule == rule.name]
        tried.sort(key=lambda pair: pair[1].result.step_time_s)
        ratios: list[float | None] = [ratio for ratio in RATIOS[:-1] if rule.has_target]
        ratios += [None] if rule.finds_target else []
        found += [_trial(t.recipe, rule, t.rollout_gpus, ratio) for t, _ in tried[:2] for ratio in ratios]
    return found


def measure(recipe: Recipe) -> MeasuredTrial:
    """Simulate a trial's recipe, and look at what was thrown away."""
    bias = LengthBias(recipe)
    result = simulate(recipe, [bias.watch])
    generated = bias.trained_tokens + result.discarded_tokens
    return MeasuredTrial(
        result=result, discarded_share=result.discarded_tokens / generated, length_bias=bias.share
    )


def rows(trials: Sequence[PeerTrial], runs: Sequence[MeasuredTrial]) -> list[PeerTrialRow]:
    """All trials, rule by rule, the best of each marked."""
    made = []
    for rule in RULES:
        tried = [(t, r) for t, r in zip(trials, runs, strict=True) if t.rule == rule.name]
        fastest = min(r.result.step_time_s for _, r in tried)
        close = [(t, r) for t, r in tried if r.result.step_time_s <= _CLOSE * fastest]
        best, _ = min(close, key=lambda pair: (pair[1].result.staleness_mean, pair[1].result.step_time_s))
        made += [PeerTrialRow(trial=t, run=r, is_best=t is best) for t, r in tried]
    return made


def _base(preset: str, *, steps: int, seed: int, assignments: Sequence[str]) -> Recipe:
    """What all trials have in common: slots and tensor parallelism are those of the preset for `dora`."""
    asked = {"control.schedule": "dora", "steps": steps, "seed": seed, "max_staleness": BOUND}
    values = [*assignments, *(f"{key}={value}" for key, value in asked.items())]
    recipe = complete(resolve(preset=preset, assignments=values))
    warmup = min(2 * (BOUND + 1), steps // 2)
    return replace(recipe, simulation=replace(recipe.simulation, warmup_steps=warmup))


def _at_all_splits(base: Recipe, rule: PeerRule) -> list[PeerTrial]:
    """A rule at every split, those whose step could be the shortest first."""
    ratio = BOUND + 1.0 if rule.has_target else None
    trials = [_trial(base, rule, split, ratio) for split in _splits(base)]
    return sorted(trials, key=lambda trial: least_step_s(trial.recipe))


def _splits(base: Recipe) -> list[int | None]:
    size, gpus = base.cluster.tensor_parallel or 1, base.cluster.gpus
    most = gpus - fewest_training_gpus(base)
    found = dict.fromkeys(max(1, round(share * gpus / size)) * size for share in SHARES)
    return [*(split for split in found if split <= most), None]


def _trial(base: Recipe, rule: PeerRule, split: int | None, ratio: float | None) -> PeerTrial:
    cluster = replace(base.cluster, rollout_gpus=split, elastic_gpus=0 if split else base.cluster.gpus)
    trained = base.batch.group_size - base.control.redundant_members
    spare = round(rule.redundant_members * trained)
    batch = replace(base.batch, group_size=trained + spare)
    control = replace(base.control, redundant_members=spare, **_control(batch.groups, rule, ratio))
    recipe = complete(replace(base, cluster=cluster, batch=batch, control=control))
    return PeerTrial(rule=rule.name, rollout_gpus=split, ratio=ratio, recipe=recipe)


def _control(groups: int, rule: PeerRule, ratio: float | None) -> dict[str, Cell]:
    """The keys of `control` for a rule at one R, all that another rule may have set among them."""
    keys: dict[str, Cell] = {
        "max_staleness": BOUND,
        "active_groups": None,
        "async_ratio": None,
        "suspend": False,
        "redundant_groups": round(rule.redundant_share * groups),
    } | rule.control
    if ratio is None:
        return keys
    if rule.control["schedule"] != "async_ratio":
        return keys | {"active_groups": round(ratio * groups)}
    alpha = ratio - 1.0
    return keys | {"async_ratio": alpha, "max_staleness": -int(-alpha // 1)}


# --- the table ----------------------------------------------------------------------------------


def show(rows: Sequence[PeerTrialRow]) -> Table:
    columns = (">GPUs generating", ">R / B", ">S", ">step s", ">x sync", ">mean staleness", ">least",
               ">greatest", ">discarded", ">length bias")  # fmt: skip
    best = [row for row in rows if row.is_best]
    gpus = best[0].run.result.gpus
    title = f"Rules of other papers at the same {gpus} GPUs and slots, each at its own best split and R"
    made = table(title, "rule", "of", *columns, caption=_finding(best))
    sync_s = next(row.run.result.step_time_s for row in best if row.trial.rule == "sync")
    for row in best:
        r = row.run.result
        bounds_each = r.schedule != "counted"
        made.add_row(
            row.trial.rule,
            _rule(row).source,
            "in turn" if row.trial.rollout_gpus is None else str(row.trial.rollout_gpus),
            f"{'found ' if _is_found(row) else ''}{r.active_groups / r.batch_groups:.2f}",
            str(r.max_staleness) if bounds_each else f"count {r.max_staleness}",
            _seconds(r.step_time_s),
            f"{sync_s / r.step_time_s:.2f}",
            f"{r.staleness_mean:.2f}",
            "-" if r.staleness_least is None else f"{r.staleness_least:.2f}",
            str(r.staleness_max),
            f"{row.run.discarded_share:.1%}",
            f"{row.run.length_bias:+.1%}",
        )
    return made


def flat(row: PeerTrialRow) -> dict[str, Cell]:
    return {
        "rule": row.trial.rule,
        "ratio": row.trial.ratio,
        "is_best": row.is_best,
        "discarded_share": row.run.discarded_share,
        "length_bias": row.run.length_bias,
        **to_dict(row.run.result),
    }


def _rule(row: PeerTrialRow) -> PeerRule:
    return next(rule for rule in RULES if rule.name == row.trial.rule)


def _is_found(row: PeerTrialRow) -> bool:
    return row.trial.ratio is None and _rule(row).finds_target


def _seconds(step_s: float) -> str:
    return f"{step_s:,.0f}" if step_s >= 100 else f"{step_s:.1f}"


def _finding(best: Sequence[PeerTrialRow]) -> str:
    """The sentence about who is fastest, who ties, and who of them trains on the freshest."""
    fastest = min(best, key=lambda row: row.run.result.step_time_s)
    limit_s = _TIE * fastest.run.result.step_time_s
    tied = [row for row in best if row.run.result.step_time_s <= limit_s]
    fresh = min(tied, key=lambda row: row.run.result.staleness_mean)
    names = ", ".join(row.trial.rule for row in tied)
    who = f"{names} tie within {_TIE - 1:.0%}" if len(tied) > 1 else f"{names} is the fastest"
    mean = fresh.run.result.staleness_mean
    best_s = _seconds(fastest.run.result.step_time_s)
    return f"{who}, {best_s} s at best; freshest of them {fresh.trial.rule} ({mean:.2f})"


# --- the picture --------------------------------------------------------------------------------

_COLOURS = (
    INK, "#777700", GREY, ORANGE, RED, SKY, PINK, "#7F5FBF", "#B89BE0", GREEN, "#8C6D46", "#6FA8FF", BLUE
)  # fmt: skip


def draw(rows: Sequence[PeerTrialRow]) -> Figure:
    """Time against staleness: each rule's frontier over all its trials, and its best one."""
    fig = figure(11, 6)
    headline(fig, "Seconds a step against the mean staleness they cost: lower left is better")
    axes = fig.subplots()
    plain(axes, x="mean staleness of what is trained on", y="seconds a step")
    for rule, colour in zip(RULES, _COLOURS, strict=True):
        of_rule = [row for row in rows if row.trial.rule == rule.name]
        points = list(_frontier([(r.run.result.staleness_mean, r.run.result.step_time_s) for r in of_rule]))
        axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=4, linewidth=1.2)
        best = next(row.run.result for row in of_rule if row.is_best)
        label = f"{rule.name} ({rule.source})" if rule.source else rule.name
        axes.plot(best.staleness_mean, best.step_time_s, color=colour, marker="D", markersize=10,
                  markeredgecolor="white", linestyle="none", label=label)  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=9, frameon=False, title="diamond: each rule's best", title_fontsize=9)
    return fig


def _frontier(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The points that no other beats in both staleness and time, freshest first."""
    fastest = float("inf")
    for staleness, step_s in sorted(points):
        if step_s < fastest:
            fastest = step_s
            yield staleness, step_s
