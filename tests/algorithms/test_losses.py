"""Laws of every policy loss."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.algorithms.losses import LOSSES, loss_of
from dora_rl.algorithms.tokens import LossTokens
from dora_rl.core.recipe.loss_configs import (
    AnyLossConfig,
    CispoConfig,
    DecoupledPpoConfig,
    PpoConfig,
    TisConfig,
    ToprConfig,
)

from .batches import LOSS_CONFIGS, Trajectory, batches, pack
from .references import REFERENCES

every_loss = pytest.mark.parametrize("config", LOSS_CONFIGS, ids=str)


def gradient(loss_T: torch.Tensor, tokens: LossTokens) -> list[float]:
    (gradient_T,) = torch.autograd.grad(loss_T.sum(), tokens.logprobs_T)
    return gradient_T.tolist()


def test_every_loss_is_checked() -> None:
    assert set(LOSSES) == set(REFERENCES) == {type(config) for config in LOSS_CONFIGS}


@every_loss
@given(batch=batches())
def test_loss_and_gradient_equal_the_reference(config: AnyLossConfig, batch: list[Trajectory]) -> None:
    tokens = pack(batch)
    terms = loss_of(config).function(tokens)
    expected = [term for t in batch for term in REFERENCES[type(config)](t, config)]
    assert terms.loss_T.tolist() == pytest.approx([loss for loss, _ in expected], rel=1e-9, abs=1e-12)
    slopes = [slope for _, slope in expected]
    assert gradient(terms.loss_T, tokens) == pytest.approx(slopes, rel=1e-9, abs=1e-12)


@every_loss
@given(batch=batches())
def test_float32_is_close_to_float64(config: AnyLossConfig, batch: list[Trajectory]) -> None:
    narrow = loss_of(config).function(pack(batch, torch.float32)).loss_T
    assert narrow.dtype == torch.float32
    assert narrow.tolist() == pytest.approx(
        loss_of(config).function(pack(batch)).loss_T.tolist(), rel=1e-4, abs=1e-4
    )


@every_loss
@given(batch=batches(max_gap=0.0))
def test_on_policy_the_gradient_is_the_policy_gradient(
    config: AnyLossConfig, batch: list[Trajectory]
) -> None:
    if isinstance(config, ToprConfig):
        # Shares and a bound below 1 act on-policy too, on purpose.
        config = ToprConfig(level=config.level)
    tokens = pack(batch)
    terms = loss_of(config).function(tokens)
    assert gradient(terms.loss_T, tokens) == (-tokens.advantages_T).tolist()
    assert terms.ratio_T.tolist() == [1.0] * len(tokens.logprobs_T)
    assert not terms.is_clipped_low_T.any()
    assert not terms.is_clipped_high_T.any()


@every_loss
@given(batch=batches(), data=st.data())
def test_the_order_of_trajectories_does_not_matter(
    config: AnyLossConfig, batch: list[Trajectory], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(batch))))
    before = loss_of(config).function(pack(batch)).loss_T.split([len(t.logprobs) for t in batch])
    shuffled = [batch[i] for i in order]
    after = loss_of(config).function(pack(shuffled)).loss_T.split([len(t.logprobs) for t in shuffled])
    assert [x.tolist() for x in after] == [before[i].tolist() for i in order]


@every_loss
@given(batch=batches(), data=st.data())
def test_masked_tokens_have_no_influence(
    config: AnyLossConfig, batch: list[Trajectory], data: st.DataObject
) -> None:
    tokens = pack(batch)
    size = len(tokens.logprobs_T)
    keep_T = torch.tensor(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=torch.bool)
    clean = gathered(tokens, tokens.logprobs_T, keep_T)
    soiled_T = torch.where(keep_T, tokens.logprobs_T.detach(), torch.nan).requires_grad_()
    terms = loss_of(config).function(gathered(tokens, soiled_T, keep_T))
    assert terms.loss_T.tolist() == loss_of(config).function(clean).loss_T.tolist()
    (gradient_T,) = torch.autograd.grad(terms.loss_T.sum(), soiled_T)
    assert torch.isfinite(gradient_T).all()
    assert (gradient_T[~keep_T] == 0).all()


def gathered(tokens: LossTokens, logprobs_T: torch.Tensor, keep_T: torch.Tensor) -> LossTokens:
    assert tokens.proximal_logprobs_T is not None
    return LossTokens(
        logprobs_T=logprobs_T[keep_T],
        behaviour_logprobs_T=tokens.behaviour_logprobs_T[keep_T],
        proximal_logprobs_T=tokens.proximal_logprobs_T[keep_T],
        advantages_T=tokens.advantages_T[keep_T],
        trajectory_T=tokens.trajectory_T[keep_T],
        num_trajectories=tokens.num_trajectories,
    )


@every_loss
@pytest.mark.parametrize("gap", [1e4, -1e4])
@pytest.mark.parametrize("advantage", [2.0, -2.0, 0.0])
def test_extreme_logprobs_stay_finite(config: AnyLossConfig, gap: float, advantage: float) -> None:
    logprobs = (-1e4, -1.0, -0.5)
    far = tuple(p - gap for p in logprobs)
    batch = [Trajectory(advantage=advantage, logprobs=logprobs, behaviour=far, proximal=far[::-1])]
    tokens = pack(batch, torch.float32)
    terms = loss_of(config).function(tokens)
    assert torch.isfinite(terms.loss_T).all()
    assert torch.isfinite(terms.ratio_T).all()
    assert torch.isfinite(torch.tensor(gradient(terms.loss_T, tokens))).all()


@every_loss
def test_trajectories_without_tokens_are_no_trouble(config: AnyLossConfig) -> None:
    empty = Trajectory(advantage=1.0, logprobs=(), behaviour=(), proximal=())
    one = Trajectory(advantage=1.0, logprobs=(-1.0,), behaviour=(-1.1,), proximal=(-1.05,))
    alone = loss_of(config).function(pack([one])).loss_T.tolist()
    assert loss_of(config).function(pack([empty, one, empty])).loss_T.tolist() == alone
    assert loss_of(config).function(pack([empty, empty])).loss_T.tolist() == []


@every_loss
@given(batch=batches())
def test_ratio_and_flags_carry_no_gradient(config: AnyLossConfig, batch: list[Trajectory]) -> None:
    terms = loss_of(config).function(pack(batch))
    assert not terms.ratio_T.requires_grad
    assert terms.is_clipped_low_T.dtype == terms.is_clipped_high_T.dtype == torch.bool


@given(batch=batches())
def test_ppo_flags_are_the_tokens_without_gradient(batch: list[Trajectory]) -> None:
    tokens = pack(batch)
    terms = loss_of(PpoConfig(dual_clip=2.0)).function(tokens)
    is_clipped_T = terms.is_clipped_low_T | terms.is_clipped_high_T
    has_none_T = torch.tensor(gradient(terms.loss_T, tokens), dtype=torch.float64) == 0
    assert torch.equal(is_clipped_T, has_none_T & (tokens.advantages_T != 0))


UNBOUNDED = [
    PpoConfig(clip_low=1.0, clip_high=1e6),
    CispoConfig(weight_high=1e6),
    TisConfig(weight_high=1e6),
    DecoupledPpoConfig(clip_low=1.0, clip_high=1e6, weight_high=1e6),
]


@pytest.mark.parametrize("config", UNBOUNDED, ids=str)
@given(seed=st.integers(0, 1000))
def test_without_bounds_stale_tokens_give_the_true_gradient(config: AnyLossConfig, seed: int) -> None:
    """Every word of a small vocabulary, weighted by how often an older policy says it."""
    generator = torch.Generator().manual_seed(seed)
    logits, old_logits, mid_logits, rewards = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    (truth,) = torch.autograd.grad(-(logits.softmax(0) * rewards).sum(), logits)
    tokens = LossTokens(
        logprobs_T=logits.log_softmax(0),
        behaviour_logprobs_T=old_logits.log_softmax(0),
        proximal_logprobs_T=mid_logits.log_softmax(0),
        advantages_T=rewards,
        trajectory_T=torch.arange(6),
        num_trajectories=6,
    )
    (estimate,) = torch.autograd.grad(
        (loss_of(config).function(tokens).loss_T * old_logits.softmax(0)).sum(), logits
    )
    assert torch.allclose(estimate, truth, rtol=1e-9, atol=1e-12)


@given(batch=batches())
def test_with_one_update_a_step_decoupled_ppo_is_cispo(batch: list[Trajectory]) -> None:
    def slopes(config: AnyLossConfig) -> list[float]:
        tokens = pack(batch)
        # The only update of a step starts from the proximal policy.
        tokens = replace(tokens, proximal_logprobs_T=tokens.logprobs_T.detach())
        return gradient(loss_of(config).function(tokens).loss_T, tokens)

    assert slopes(DecoupledPpoConfig()) == pytest.approx(slopes(CispoConfig()), rel=1e-9, abs=1e-12)


def test_decoupled_ppo_without_a_proximal_policy_is_refused() -> None:
    tokens = replace(pack([Trajectory(advantage=1, logprobs=(-1,), behaviour=(-1,), proximal=(-1,))]))
    with pytest.raises(AssertionError, match="proximal_logprobs_T"):
        loss_of(DecoupledPpoConfig()).function(replace(tokens, proximal_logprobs_T=None))


def test_tokens_that_do_not_fit_together_are_refused() -> None:
    tokens = pack([Trajectory(advantage=1, logprobs=(-1, -2), behaviour=(-1, -2), proximal=(-1, -2))])
    with pytest.raises(AssertionError, match="advantages_T"):
        replace(tokens, advantages_T=torch.zeros(3))
