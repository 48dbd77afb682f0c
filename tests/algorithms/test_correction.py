"""The weights between engine and trainer."""

import math

import pytest
import torch
from hypothesis import given

from dora_rl.algorithms.config import CorrectionConfig
from dora_rl.algorithms.correction import correction

from .batches import Trajectory, batches, pack

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
