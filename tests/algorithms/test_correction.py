"""The weights between engine and trainer."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.algorithms.correction import corrected, correction
from dora_rl.algorithms.losses import loss_of
from dora_rl.core.recipe.algorithm import CorrectionConfig
from dora_rl.core.recipe.loss_configs import AnyLossConfig, TisConfig

from .batches import LOSS_CONFIGS, Trajectory, batches, pack

CONFIGS = [
    CorrectionConfig(level=level, treatment=treatment, low=low, high=high)
    for level in ("token", "sequence", "geometric")
    for treatment in ("truncated", "masked")
    for low, high in ((0.0, 2.0), (0.5, 1.1))
]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=str)


def reference(t: Trajectory, config: CorrectionConfig) -> list[tuple[float, bool]]:
    """Weight and whether it was out of bounds; the trainer's logprobs are `logprobs`."""
    gaps = [p - b for p, b in zip(t.logprobs, t.behaviour, strict=True)]
    if config.level == "sequence":
        gaps = [math.fsum(gaps)] * len(gaps)
    if config.level == "geometric" and gaps:
        gaps = [math.fsum(gaps) / len(gaps)] * len(gaps)
    results = []
    for weight in map(math.exp, gaps):
        is_out = not config.low <= weight <= config.high
        if is_out:
            weight = 0.0 if config.treatment == "masked" else min(max(weight, config.low), config.high)
        results.append((weight, is_out))
    return results


@every_config
@given(batch=batches())
def test_weights_equal_the_reference(config: CorrectionConfig, batch: list[Trajectory]) -> None:
    tokens = pack(batch)
    found = correction(
        tokens.behaviour_logprobs_T, tokens.logprobs_T, tokens.trajectory_T, len(batch), config
    )
    expected = [x for t in batch for x in reference(t, config)]
    assert found.weights_T.tolist() == pytest.approx([w for w, _ in expected], rel=1e-9)
    assert found.is_out_T.tolist() == [is_out for _, is_out in expected]
    assert found.share_out == pytest.approx(
        sum(is_out for _, is_out in expected) / max(1, len(expected)), abs=1e-6
    )
    assert not found.weights_T.requires_grad


@every_config
@given(batch=batches(max_gap=0.0))
def test_an_engine_that_agrees_is_not_corrected(config: CorrectionConfig, batch: list[Trajectory]) -> None:
    tokens = pack(batch)
    found = correction(
        tokens.behaviour_logprobs_T, tokens.logprobs_T, tokens.trajectory_T, len(batch), config
    )
    assert found.weights_T.tolist() == [1.0] * len(tokens.logprobs_T)
    assert found.share_out == 0.0


@every_config
@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_far_apart_logprobs_have_finite_weights(config: CorrectionConfig, gap: float) -> None:
    engine_T = torch.full((3,), -1.0)
    found = correction(engine_T, engine_T + gap, torch.tensor([0, 0, 1]), 3, config)
    assert torch.isfinite(found.weights_T).all()
    assert found.weights_T.max() <= config.high


@given(batch=batches())
def test_ratio_times_weight_is_policy_over_engine(batch: list[Trajectory]) -> None:
    tokens = pack(batch)
    assert tokens.proximal_logprobs_T is not None
    loss = loss_of(TisConfig(weight_high=1e6))
    terms, found = corrected(loss, tokens, tokens.proximal_logprobs_T, CorrectionConfig(high=1e6))
    ratio_T = (tokens.logprobs_T - tokens.behaviour_logprobs_T).detach().exp()
    assert torch.allclose(terms.ratio_T * found.weights_T, ratio_T, rtol=1e-9)
    expected_T = -ratio_T * tokens.advantages_T * tokens.logprobs_T
    assert torch.allclose(terms.loss_T, expected_T, rtol=1e-9, atol=1e-12)


@given(config=st.sampled_from(LOSS_CONFIGS), correction_config=st.sampled_from(CONFIGS), batch=batches())
def test_a_corrected_loss_is_the_loss_times_the_weights(
    config: AnyLossConfig, correction_config: CorrectionConfig, batch: list[Trajectory]
) -> None:
    tokens = pack(batch)
    assert tokens.proximal_logprobs_T is not None
    terms, found = corrected(loss_of(config), tokens, tokens.proximal_logprobs_T, correction_config)
    plain = loss_of(config).function(replace(tokens, behaviour_logprobs_T=tokens.proximal_logprobs_T))
    assert torch.equal(terms.loss_T, plain.loss_T * found.weights_T)
    assert torch.equal(terms.ratio_T, plain.ratio_T)
