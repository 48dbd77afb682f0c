"""KL estimators: their values, and where their gradients pull; the entropy bonus."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.algorithms.regularisers import kl_terms, regularised, rewards_less_kl

FORMULAS = {
    "k1": lambda d: d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(-d) - 1 + d,
}
every_estimator = pytest.mark.parametrize("estimator", FORMULAS)


@every_estimator
@given(gaps=st.lists(st.floats(-5, 5), max_size=8))
def test_terms_equal_the_reference(estimator: str, gaps: list[float]) -> None:
    logprobs_T = torch.tensor(gaps, dtype=torch.float64) - 6
    terms_T = kl_terms(logprobs_T, torch.full_like(logprobs_T, -6), estimator)
    expected = [FORMULAS[estimator](gap) for gap in (logprobs_T + 6).tolist()]
    assert terms_T.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@every_estimator
def test_policy_equal_to_reference_has_no_kl(estimator: str) -> None:
    logprobs_T = torch.tensor([-1.0, -2.0])
    assert kl_terms(logprobs_T, logprobs_T, estimator).tolist() == [0.0, 0.0]


@every_estimator
@pytest.mark.parametrize("gap", [1e4, -1e4])
def test_far_policies_have_finite_terms(estimator: str, gap: float) -> None:
    logprobs_T = torch.tensor([-1.0 + gap], requires_grad=True)
    terms_T = kl_terms(logprobs_T, torch.tensor([-1.0]), estimator)
    (gradient_T,) = torch.autograd.grad(terms_T.sum(), logprobs_T)
    assert torch.isfinite(terms_T).all()
    assert torch.isfinite(gradient_T).all()
    if estimator != "k1":
        assert terms_T.item() > 0
        assert gradient_T.item() * gap >= 0, "a step down the gradient would lead away from the reference"


@given(seed=st.integers(0, 1000))
def test_expected_gradients_are_those_the_docstring_names(seed: int) -> None:
    """Every word of a small vocabulary, weighted by how often the policy says it."""
    generator = torch.Generator().manual_seed(seed)
    logits, reference_logits = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    policy, reference = logits.log_softmax(0), reference_logits.log_softmax(0)
    forward = (policy.exp() * (policy - reference)).sum()
    backward = (reference.exp() * (reference - policy)).sum()
    truths = {"k1": forward * 0, "k2": forward, "k3": backward}
    for estimator, truth in truths.items():
        (expected,) = torch.autograd.grad(truth, logits, retain_graph=True)
        loss = (policy.exp().detach() * kl_terms(policy, reference, estimator)).sum()
        (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert torch.allclose(found, expected, atol=1e-12), estimator


def test_reward_shaping_takes_the_sum_of_a_trajectorys_terms() -> None:
    rewards_N = rewards_less_kl(
        torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor([0.5, 0.25, 1.0], requires_grad=True),
        torch.tensor([0, 0, 2]),
        coefficient=2.0,
    )
    assert rewards_N.tolist() == [-0.5, 2.0, 1.0]
    assert not rewards_N.requires_grad


def test_kl_adds_to_the_loss_and_entropy_takes_from_it() -> None:
    loss_T, kl_T, entropy_T = torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([0.75])
    both_T = regularised(loss_T, entropy_T=entropy_T, entropy_bonus=2.0, kl_T=kl_T, kl_coefficient=3.0)
    assert both_T.tolist() == [1.0 + 3.0 * 0.5 - 2.0 * 0.75]
    neither_T = regularised(loss_T, entropy_T=entropy_T, entropy_bonus=0.0, kl_T=None, kl_coefficient=3.0)
    assert neither_T.tolist() == [1.0]
