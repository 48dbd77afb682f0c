"""How loss, correction, KL and entropy combine."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.algorithms.config import AlgorithmConfig, CorrectionConfig, KlConfig, TisConfig
from dora_rl.algorithms.objective import objective
from dora_rl.algorithms.presets import PRESETS
from dora_rl.algorithms.tokens import LossTokens

from .batches import Trajectory, batches, pack


def test_the_parts_add_up() -> None:
    config = AlgorithmConfig(
        loss=TisConfig(weight_high=9.0),
        kl=KlConfig(coefficient=0.5, estimator="k2"),
        entropy_bonus=0.1,
        correction=CorrectionConfig(high=1.5),
    )
    tokens = LossTokens(
        logprobs_T=torch.tensor([-1.0], requires_grad=True),
        behaviour_logprobs_T=torch.tensor([-3.0]),
        advantages_T=torch.tensor([2.0]),
        trajectory_T=torch.tensor([0]),
        num_trajectories=1,
    )
    found = objective(
        config,
        tokens,
        torch.tensor([0.25]),
        entropy_T=torch.tensor([0.7]),
        reference_logprobs_T=torch.tensor([-2.0]),
        trainer_logprobs_T=torch.tensor([-2.0]),
    )
    # The engine said -3, the trainer -2: a weight of e held at 1.5, and a ratio of e over the trainer's.
    policy = 1.5 * math.e * 2.0
    assert found.loss.item() == pytest.approx(0.25 * (policy + 0.5 * 0.5 - 0.1 * 0.7), rel=1e-6)
    assert found.terms.ratio_T.item() == pytest.approx(math.e, rel=1e-6)
    assert found.kl_T is not None
    assert found.kl_T.tolist() == [0.5]
    assert found.correction is not None
    assert found.correction.share_out == 1.0


@given(batch=batches(), data=st.data())
def test_ratio_times_correction_is_policy_over_engine(batch: list[Trajectory], data: st.DataObject) -> None:
    tokens = pack(batch)
    assert tokens.proximal_logprobs_T is not None
    found = objective(
        AlgorithmConfig(loss=TisConfig(weight_high=1e6), correction=CorrectionConfig(high=1e6)),
        tokens,
        torch.ones(len(tokens.logprobs_T)),
        trainer_logprobs_T=tokens.proximal_logprobs_T,
    )
    assert found.correction is not None
    product_T = found.terms.ratio_T * found.correction.weights_T
    expected_T = (tokens.logprobs_T - tokens.behaviour_logprobs_T).detach().exp()
    assert torch.allclose(product_T, expected_T, rtol=1e-9)


@pytest.mark.parametrize("name", PRESETS)
@given(batch=batches())
def test_every_preset_gives_a_finite_gradient(name: str, batch: list[Trajectory]) -> None:
    tokens = pack(batch, torch.float32)
    found = objective(PRESETS[name], tokens, torch.ones(len(tokens.logprobs_T)))
    found.loss.backward()
    assert tokens.logprobs_T.grad is not None
    assert torch.isfinite(tokens.logprobs_T.grad).all()
    assert found.kl_T is None
    assert found.correction is None


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (AlgorithmConfig(entropy_bonus=0.1), "entropy_T"),
        (AlgorithmConfig(kl=KlConfig()), "reference_logprobs_T"),
        (AlgorithmConfig(correction=CorrectionConfig()), "trainer_logprobs_T"),
    ],
)
def test_what_a_configuration_needs_is_named(config: AlgorithmConfig, missing: str) -> None:
    tokens = pack([Trajectory(advantage=1, logprobs=(-1,), behaviour=(-1,), proximal=(-1,))])
    with pytest.raises(AssertionError, match=missing):
        objective(config, tokens, torch.ones(1))
