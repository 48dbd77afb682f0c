"""Blocked log-probabilities and entropies are the dense ones, values and gradients, at any block size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dora_rl.model.logprobs import TokenLogprobs, token_logprobs
from dora_rl.model.tiny import seeded_decoder, tiny_config


def random_problem(num_tokens: int, num_words: int, scale: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_tokens * 1000 + num_words)
    hidden = torch.randn(num_tokens, 16, generator=generator)
    head = scale * torch.randn(num_words, 16, generator=generator)
    return hidden, head, torch.randint(0, num_words, (num_tokens,), generator=generator)


def dense(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> TokenLogprobs:
    """The definition, in float64."""
    logprobs = (hidden.double() @ head.double().T / temperature).log_softmax(dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return TokenLogprobs(logprobs.gather(1, targets[:, None])[:, 0], entropy)


@given(
    num_tokens=st.integers(1, 20),
    num_words=st.integers(2, 70),
    block_tokens=st.integers(1, 25),
    block_words=st.integers(1, 80),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
)
def test_blocks_change_nothing(
    num_tokens: int, num_words: int, block_tokens: int, block_words: int, temperature: float
) -> None:
    problem = random_problem(num_tokens, num_words)
    blocked = token_logprobs(
        *problem, temperature=temperature, block_tokens=block_tokens, block_words=block_words
    )
    for ours, expected in zip(blocked, dense(*problem, temperature), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_gradients_are_the_dense_ones(temperature: float) -> None:
    hidden, head, targets = random_problem(13, 50)
    weights_T, bonus_T = torch.randn(2, 13, generator=torch.Generator().manual_seed(0))
    gradients = []
    for compute in (
        lambda h, w: token_logprobs(h, w, targets, temperature=temperature, block_tokens=4, block_words=7),
        lambda h, w: dense(h, w, targets, temperature),
    ):
        inputs = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        result = compute(*inputs)
        loss = (weights_T * result.logprobs_T + bonus_T * result.entropy_T).sum()
        gradients.append(torch.autograd.grad(loss, inputs))
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_a_frozen_head_still_passes_gradients_to_the_hidden_states() -> None:
    hidden, head, targets = random_problem(5, 20)
    token_logprobs(hidden.requires_grad_(), head, targets).logprobs_T.sum().backward()
    assert hidden.grad is not None
    assert head.grad is None


def test_extreme_logits_stay_finite() -> None:
    hidden, head, targets = random_problem(6, 40, scale=5000.0)
    hidden.requires_grad_()
    result = token_logprobs(hidden, head, targets, block_words=7)
    (result.logprobs_T + result.entropy_T).sum().backward()
    assert hidden.grad is not None
    for values in (*result, hidden.grad):
        assert values.isfinite().all()


def test_a_tied_head_collects_both_gradients() -> None:
    from dora_rl.model.attention import PackedAttention

    decoder = seeded_decoder(tiny_config(97), seed=0)
    tokens = torch.arange(20)
    hidden = decoder(tokens, tokens, PackedAttention([20]))
    ours = decoder.logprobs(hidden, tokens, temperature=0.7).logprobs_T
    expected = (decoder.logits(hidden) / 0.7).log_softmax(dim=-1).diagonal()
    torch.testing.assert_close(ours, expected)
    for blocked, plain in zip(
        torch.autograd.grad(ours.sum(), list(decoder.parameters()), retain_graph=True),
        torch.autograd.grad(expected.sum(), list(decoder.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(blocked, plain, rtol=1e-4, atol=1e-5)
