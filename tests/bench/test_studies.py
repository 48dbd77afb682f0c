"""Studies vary what they say they vary; their small variants keep the laws."""

from statistics import fmean

import pytest
from msgspec.structs import replace

from dora_rl.bench.studies import ablation, paper, peers, scale, staleness, window_readings
from dora_rl.bench.studies.length_bias import LengthBias
from dora_rl.core.decisions import Admit, Close, Take
from dora_rl.core.inputs import Tick
from dora_rl.core.recipe import Recipe
from dora_rl.sim.simulated_run import simulate
from dora_rl.sim.simulation_setup import PRESETS, Preset
from dora_rl.sim.sweep import sweep
from dora_rl.sim.truth import Truth

TINY = {
    "batch": {"groups": 8, "group_size": 2},
    "cluster": {"gpus": 16, "rollout_gpus": 6, "tensor_parallel": 1, "slots": 16},
    "task": {"rows": 64},
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(PRESETS, "tiny", Preset(summary="tiny", tree=TINY))
    return "tiny"


def test_the_paper_study_has_a_run_for_every_published_cell_and_one_of_our_own() -> None:
    recipes = paper.recipes(steps=6, seed=3)
    cells = {(recipe.control.schedule, recipe.cluster.gpus) for recipe in recipes}
    assert cells == {*paper.PUBLISHED, ("dora", 64), ("dora", 128)}
    assert {(recipe.seed, recipe.steps) for recipe in recipes} == {(3, 6)}
    assert {
        recipe.control.max_staleness for recipe in recipes if recipe.control.schedule == "dora_onset"
    } == {2}


def test_both_readings_of_the_papers_k_differ_in_the_bound_alone() -> None:
    recipes = window_readings.recipes(steps=6, seed=3)
    assert [(r.cluster.gpus, r.control.max_staleness) for r in recipes] == [
        (64, 2),
        (64, 3),
        (128, 2),
        (128, 3),
    ]
    for narrow, wide in (recipes[:2], recipes[2:]):
        assert narrow == replace(wide, control=replace(wide.control, max_staleness=2))
    assert recipes[0] in paper.recipes(steps=6, seed=3), "the reading that the paper's table uses"


def test_a_paper_row_compares_with_the_paper_and_with_sync() -> None:
    sync, dora = (
        simulate(replace(recipe, steps=3, batch=replace(recipe.batch, groups=8, group_size=2, updates=8)))
        for recipe in (_of("sync"), _of("dora"))
    )
    rows = paper.rows([sync, dora])
    assert rows[0].speed_up == 1.0
    assert rows[0].deviation == pytest.approx(sync.step_time_s / 1374.6 - 1.0)
    assert rows[1].deviation is None
    assert rows[1].speed_up == pytest.approx(sync.step_time_s / dora.step_time_s)


def test_the_seconds_of_the_paper_study_are_those_of_the_steps_that_count() -> None:
    recipes = [
        replace(_of(schedule), steps=9, batch=replace(_of(schedule).batch, groups=8, group_size=2, updates=8))
        for schedule in ("sync", "dora")
    ]
    results, runs = zip(*sweep(paper.accounted, recipes), strict=True)
    for result, run in zip(results, runs, strict=True):
        assert fmean(step.wall_s for step in run.steps) == pytest.approx(result.step_time_s)
        assert run.num_instances == result.instances
    fig = paper.draw_seconds([replace(result, gpus=128) for result in results], runs)
    heights = [sum(layer[1].get_height() for layer in axes.containers) for axes in fig.axes]
    assert heights == pytest.approx([results[1].step_time_s] * 2)
    sync, dora = (label.get_text() for label in fig.axes[1].get_xticklabels())
    assert sync == "sync\nmean staleness 0.00"
    assert dora.startswith("dora, S = 3\nmean staleness ")


def _of(schedule: str) -> Recipe:
    found = (recipe for recipe in paper.recipes(steps=3, seed=0) if recipe.control.schedule == schedule)
    recipe = next(found)
    return replace(recipe, control=replace(recipe.control, active_groups=None))


def test_scale_doubles_and_keeps_four_groups_a_gpu() -> None:
    assert scale.sizes(16_384) == [64 * 2**i for i in range(9)]
    assert scale.sizes(100) == [64]
    recipes = [scale.recipe(gpus, steps=12, seed=0) for gpus in (64, 4096)]
    assert [recipe.batch.groups for recipe in recipes] == [256, 16_384]
    assert recipes[0].steps == 12 > recipes[1].steps == 10


def test_the_staleness_grid_leaves_out_what_could_never_be_trained_on() -> None:
    assert all(ratio is None or ratio <= bound + 1 for bound, ratio in staleness.grid())
    assert {bound for bound, ratio in staleness.grid() if ratio is None} == set(staleness.BOUNDS)


def test_staleness_stays_within_the_bound_of_its_row(tiny: str) -> None:
    rows = staleness.rows(sweep(simulate, staleness.recipes(tiny, steps=7, seed=0)))
    assert len(rows) == len(staleness.grid())
    assert all(row.result.staleness_max <= row.max_staleness for row in rows)
    assert all(row.result.active_groups == round(row.ratio * 8) for row in rows if row.ratio)


def test_every_ablation_changes_one_thing_and_loses_nothing(tiny: str) -> None:
    recipes = ablation.recipes(tiny, steps=6, seed=0)
    plenty, scarce = recipes[:2]
    assert (plenty.cluster.rollout_gpus, scarce.cluster.rollout_gpus) == (6, 4)
    assert len(set(recipes)) == len(recipes), "every variant differs"
    for row in ablation.rows(recipes, sweep(simulate, recipes)):
        for result in (row.plenty, row.scarce):
            assert result.lost_trajectories == result.duplicated_trajectories == 0
            assert result.mixed_version_trajectories == 0


def test_peers_have_the_same_gpus_and_slots_and_the_same_search(tiny: str) -> None:
    trials = peers.first_trials(tiny, steps=6, seed=0)
    clusters = [trial.recipe.cluster for trial in trials]
    assert {(c.gpus, c.slots, c.tensor_parallel) for c in clusters} == {(16, 16, 1)}
    every = [(rule, peers._at_all_splits(trials[0].recipe, rule)) for rule in peers.RULES]
    splits = {rule.name: {t.rollout_gpus for t in of_rule} for rule, of_rule in every}
    assert all(each == splits["dora"] for each in splits.values())
    assert None in splits["dora"], "devices that take turns are tried too"
    for rule, of_rule in every:
        promised = [peers.least_step_s(trial.recipe) for trial in of_rule]
        assert promised == sorted(promised)
        assert [t.rollout_gpus for t in trials if t.rule == rule.name] == [
            t.rollout_gpus for t in of_rule[:2]
        ]


def test_a_split_is_left_out_only_where_it_is_slower_than_the_rules_best(tiny: str) -> None:
    trials = peers.first_trials(tiny, steps=6, seed=0)
    runs = [peers.measure(trial.recipe) for trial in trials]
    others = peers.other_splits(trials, runs)
    for rule in peers.RULES:
        fastest_s = min(
            run.result.step_time_s for t, run in zip(trials, runs, strict=True) if t.rule == rule.name
        )
        tried = {t.rollout_gpus for t in [*trials, *others] if t.rule == rule.name}
        for trial in peers._at_all_splits(trials[0].recipe, rule):
            if trial.rollout_gpus not in tried:
                assert peers.measure(trial.recipe).result.step_time_s > fastest_s


def test_every_peer_has_one_best_trial_and_only_redundancy_discards(tiny: str) -> None:
    trials = [t for t in peers.first_trials(tiny, steps=6, seed=0) if t.rollout_gpus in (4, 6)]
    runs = [peers.measure(trial.recipe) for trial in trials]
    later = peers.later_trials(trials, runs)
    assert {t.ratio for t in later if t.rule == "dora"} == {1.25, 1.5, 2.0, 3.0, None}
    assert not [t for t in later if t.rule == "sync"]
    rows = peers.rows(trials, runs)
    assert [row.trial.rule for row in rows if row.is_best] == [rule.name for rule in peers.RULES]
    for row in rows:
        is_redundant = row.trial.recipe.control.aborts
        assert (row.run.discarded_share > 0.0) == is_redundant
        assert (row.run.length_bias < 0.0) == is_redundant or row.trial.rule == "sync, tail batching"
        recipe = row.trial.recipe
        assert recipe.batch.group_size - recipe.control.redundant_members == trials[0].recipe.batch.group_size
    (axes,) = peers.draw(rows).axes
    assert len(axes.lines) == 2 * len(peers.RULES)


def test_a_frontier_keeps_what_nothing_beats_in_both() -> None:
    points = [(1.0, 50.0), (0.0, 90.0), (2.0, 60.0), (3.0, 40.0), (0.0, 80.0)]
    assert list(peers._frontier(points)) == [(0.0, 80.0), (1.0, 50.0), (3.0, 40.0)]


def test_length_bias_compares_what_was_trained_on_with_all_that_started(tiny: str) -> None:
    recipe = peers.first_trials(tiny, steps=6, seed=0)[0].recipe
    truth, bias = Truth(recipe.task, recipe.seed), LengthBias(recipe)
    lengths = [truth.response_tokens(0, row, member, 0) for row in (5, 6) for member in range(2)]
    admits = [Admit(group=i, version=0, epoch=0, row=row) for i, row in enumerate((5, 6))]
    close = Close(group=1, members=(3,), outcome="aborted: redundant")
    bias.watch(Tick(at=0.0), [*admits, close, Take(batch=0, groups=(0, 1), staleness=(0, 0))])
    assert bias.trained_tokens == sum(lengths[:3])
    assert bias.share == pytest.approx(sum(lengths[:3]) / 3 / (sum(lengths) / 4) - 1.0)


def test_a_sweep_in_processes_gives_what_a_loop_gives(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = staleness.recipes(tiny, steps=4, seed=0)[:3]
    done: list[None] = []
    alone = sweep(simulate, recipes, lambda: done.append(None))
    monkeypatch.setattr("dora_rl.sim.sweep._WORTHWHILE", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert sweep(simulate, recipes, lambda: done.append(None)) == alone
    assert len(done) == 6
