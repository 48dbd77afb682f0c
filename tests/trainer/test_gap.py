"""What a step says of how old its data is, and of the gap between engine and trainer."""

import logging
import math

import pytest
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.algorithm import AlgorithmConfig, CorrectionConfig
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.recipe.trainer_config import GapConfig, TrainerConfig
from dora_rl.model.config import ModelConfig
from dora_rl.trainer.train_batch import TrajectoryError

from .odd import batch_of, make_trainer, member, recorded

OF_STALENESS = ("tokens", "clip_fraction", "ratio_mean", "policy_kl", "entropy")


def test_metrics_tell_staleness_apart(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    trainer.train(batch_of((member(reward=1.0), member((7,)))))
    (fresh,) = recorded(trainer, (4, 5), (6,)).groups
    # Far more likely than when it was drawn, and far less: held from above and from below.
    rare, common = member((4, 5), 1.0, logprobs=(-20.0,) * 2), member((6,), logprobs=(-0.01,))
    metrics = trainer.train(batch_of(fresh.members, (rare, common)))
    assert metrics["staleness/mean"] == 0.5
    assert metrics["staleness/max"] == 1
    for age, ratio, clipped, kl in ((0, 1.0, 0.0, 0.0), (1, None, 1.0, None)):
        own = {name: metrics[f"staleness/{age}/{name}"] for name in OF_STALENESS}
        assert own["tokens"] == 3
        assert own["clip_fraction"] == clipped
        assert own["entropy"] > 1
        assert own["ratio_mean"] == pytest.approx(ratio, abs=1e-4) if ratio else own["ratio_mean"] > 1e5
        assert own["policy_kl"] == pytest.approx(kl, abs=1e-6) if kl is not None else own["policy_kl"] > 1e5
    for name in ("ratio_mean", "entropy", "policy_kl"):
        both = [metrics[f"staleness/{age}/{name}"] for age in (0, 1)]
        assert sum(both) / 2 == pytest.approx(metrics[name])


def test_the_gap_is_not_measured_once_the_step_has_changed_the_weights(model: ModelConfig) -> None:
    trainer = make_trainer(model, updates=2)
    (group,) = recorded(trainer, (4, 5), (6,), shift=0.01).groups
    metrics = trainer.train(batch_of(group.members, group.members))
    # Of the second mini-batch alone it would be what the first update changed.
    assert metrics["logprob_gap/max"] == pytest.approx(0.01, abs=1e-4)


def test_very_old_data_is_counted_with_the_oldest(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    trainer.become(40)
    metrics = trainer.train(batch_of((member(reward=1.0), member((7,), version=25))))
    assert metrics["staleness/max"] == 40
    assert metrics["staleness/15/tokens"] == 3


def test_the_gap_of_engine_and_trainer_is_measured_on_fresh_data_only(model: ModelConfig) -> None:
    trainer = make_trainer(model)
    assert trainer.train(recorded(trainer, (4, 5), (6,)))["logprob_gap/max"] < 1e-5
    metrics = trainer.train(recorded(trainer, (4, 5), (6,), shift=0.02))
    assert metrics["logprob_gap/mean"] == pytest.approx(0.02, abs=1e-4)
    assert "logprob_gap/mean" not in trainer.train(batch_of((member(reward=1.0), member((7,)))))


def test_a_gap_that_is_large_or_grows_is_a_warning(
    model: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(model, gap=GapConfig(max_mean=0.05, max_growth=3.0))
    flags = [
        trainer.train(recorded(trainer, (4, 5), (6,), shift=shift))["warnings/logprob_gap"]
        for shift in (0.002, 0.002, 0.02, 0.2)
    ]
    assert flags == [0, 0, 1, 1]
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 2
    assert "grew" in warned[0]
    assert "differ by" in warned[1]
    assert warned[1].endswith("; set algorithm.correction.level=token to weigh tokens by the ratio of both")
    assert resolve_recipe(Recipe(), ["algorithm.correction.level=token"]).algorithm.correction is not None


def test_who_corrects_already_is_not_told_to(model: ModelConfig, caplog: pytest.LogCaptureFixture) -> None:
    algorithm = AlgorithmConfig(correction=CorrectionConfig())
    trainer = make_trainer(model, kept_versions=1, algorithm=algorithm, gap=GapConfig(max_mean=0.05))
    assert trainer.watch.look({"logprob_gap/mean": 0.2}, ())["warnings/logprob_gap"] == 1
    (warned,) = (record.message for record in caplog.records)
    assert warned.endswith("do not compute the same distribution")


def test_kept_versions_measure_and_correct_stale_data(model: ModelConfig) -> None:
    algorithm = AlgorithmConfig(correction=CorrectionConfig(treatment="masked", low=0.5, high=1.005))
    trainer = make_trainer(model, kept_versions=2, algorithm=algorithm)
    batch = recorded(trainer, (4, 5), (6,), shift=0.01)
    for expected_staleness in (0, 1):
        metrics = trainer.train(batch)
        assert metrics["staleness/max"] == expected_staleness
        assert metrics["logprob_gap/mean"] == pytest.approx(0.01, abs=1e-4)
        # exp(0.01) is out of bounds: every token's weight is zero.
        assert metrics["correction/out_fraction"] == 1
        assert metrics["grad_norm"] == 0
    # By now version 0 is no longer kept: nothing to compare with, so what is recorded is taken as it is.
    metrics = trainer.train(batch)
    assert "logprob_gap/mean" not in metrics
    assert metrics["grad_norm"] > 0


def test_tokens_of_several_versions_are_computed_again_each_under_its_own(model: ModelConfig) -> None:
    algorithm = AlgorithmConfig(correction=CorrectionConfig(treatment="masked", low=0.5, high=1.005))
    trainer = make_trainer(model, kept_versions=2, algorithm=algorithm)
    responses = ((4, 5, 6, 7), (6, 9, 9))
    first = recorded(trainer, *responses).groups[0].members
    trainer.train(batch_of((member((8, 8, 8), 1.0), member((9,)))))
    second = recorded(trainer, *responses).groups[0].members
    # Two tokens under version 0, then interrupted, and the rest under version 1.
    mixed = tuple(
        replace(
            old,
            logprobs=old.logprobs[:2] + new.logprobs[2:],
            versions=(0, 0, *(1,) * (len(new.logprobs) - 2)),
        )
        for old, new in zip(first, second, strict=True)
    )
    assert (
        max(
            abs(a - b)
            for old, new in zip(first, second, strict=True)
            for a, b in zip(old.logprobs, new.logprobs, strict=True)
        )
        > 0.01
    )
    metrics = trainer.train(batch_of(mixed))
    assert metrics["logprob_gap/max"] == pytest.approx(0, abs=1e-4)
    assert metrics["correction/out_fraction"] == 0
    assert (metrics["staleness/0/tokens"], metrics["staleness/1/tokens"]) == (3, 4)
    # Version 0 is gone by now: of its tokens the recorded logprobs are taken, of the others the computed.
    metrics = trainer.train(batch_of(mixed))
    assert metrics["logprob_gap/max"] == pytest.approx(0, abs=1e-4)
    assert metrics["correction/out_fraction"] == 0


def test_a_trajectory_names_a_version_for_each_of_its_tokens() -> None:
    with pytest.raises(TrajectoryError, match="1 versions for 2 policy tokens"):
        member((4, 5), versions=(0,))


def test_a_correction_without_kept_versions_is_refused() -> None:
    with pytest.raises(ConfigError, match="none is kept"):
        TrainerConfig(algorithm=AlgorithmConfig(correction=CorrectionConfig()))


def test_data_from_a_cut_distribution_is_a_warning(
    model: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(model)
    assert trainer.train(batch_of((member(reward=1.0), member((7,)))))["warnings/cut_distribution"] == 0
    for _ in range(2):
        cut = batch_of((member(reward=1.0, is_cut=True), member((7,))))
        assert trainer.train(cut)["warnings/cut_distribution"] == 1
    assert sum("cut by top-k" in record.message for record in caplog.records) == 1


def test_a_gap_that_is_no_number_is_a_warning_and_does_not_end_the_watch(
    model: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    watch = make_trainer(model, gap=GapConfig(max_mean=0.05, max_growth=3.0)).watch
    gaps = (0.002, math.nan, 0.002, 0.02)
    flags = [watch.look({"logprob_gap/mean": gap}, ())["warnings/logprob_gap"] for gap in gaps]
    assert flags == [0, 1, 0, 1]
    assert ["no numbers" in record.message for record in caplog.records] == [True, False]


@pytest.mark.parametrize(
    ("gaps", "flags"),
    [
        pytest.param((0.002, 0.005, 0.012), [0, 0, 1], id="by steps, each less than threefold"),
        pytest.param((1e-7, 1e-6, 1e-5), [0, 0, 0], id="of rounding"),
        pytest.param((0.002, 0.002, 0.005, 0.005, 0.005), [0, 0, 0, 0, 0], id="and stays"),
        pytest.param((0.06, 0.06), [1, 1], id="large from the start"),
    ],
)
def test_growth_is_measured_against_a_running_level(
    model: ModelConfig, gaps: tuple[float, ...], flags: list[int]
) -> None:
    watch = make_trainer(model, gap=GapConfig(max_mean=0.05, max_growth=3.0)).watch
    assert [watch.look({"logprob_gap/mean": gap}, ())["warnings/logprob_gap"] for gap in gaps] == flags
