"""Sums by staleness, against the same by hand."""

import torch

from dora_rl.algorithms.losses import loss_of
from dora_rl.algorithms.tokens import LossTokens
from dora_rl.core.recipe.loss_configs import PpoConfig
from dora_rl.trainer.loss_meters import LossMeters, Totals
from dora_rl.trainer.ranks import Alone
from dora_rl.trainer.tensors import MAX_STALENESS, PolicyTokens

NUM_WORDS = MAX_STALENESS + 1


def measured(newer_P: torch.Tensor, older_P: torch.Tensor, staleness_P: torch.Tensor) -> Totals:
    ones_P, trajectory_P = torch.ones_like(newer_P), torch.arange(len(newer_P))
    tokens = PolicyTokens(
        advantages_P=ones_P,
        weights_P=ones_P,
        behaviour_P=older_P,
        trajectory_P=trajectory_P,
        staleness_P=staleness_P,
        is_comparable_P=staleness_P == 0,
    )
    seen = LossTokens(
        logprobs_T=newer_P,
        behaviour_logprobs_T=older_P,
        advantages_T=ones_P,
        trajectory_T=trajectory_P,
        num_trajectories=len(newer_P),
    )
    meters = LossMeters(torch.device("cpu"))
    meters.add_terms(tokens, newer_P, ones_P, loss_of(PpoConfig(clip_high=0.2)).function(seen))
    return meters.totals(Alone())


def policies() -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randn(2, NUM_WORDS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    newer_V, older_V = drawn.log_softmax(dim=-1)
    return newer_V, older_V


def test_policy_kl_estimates_how_far_the_policy_went_from_what_generated() -> None:
    """Without error: every word the older policy may say, one a staleness, as often as it says it."""
    newer_V, older_V = policies()
    terms = measured(newer_V, older_V, torch.arange(NUM_WORDS)).sums["policy_kl"]
    estimate = (torch.tensor(terms, dtype=torch.float64) * older_V.exp()).sum()
    torch.testing.assert_close(estimate, (older_V.exp() * (older_V - newer_V)).sum())


def test_every_quantity_is_told_apart_by_staleness() -> None:
    newer_P, older_P = policies()
    staleness_P = torch.arange(NUM_WORDS) % 3
    found = measured(newer_P, older_P, staleness_P)
    for age in range(3):
        is_own_P = staleness_P == age
        ratio = (newer_P - older_P)[is_own_P].exp()
        expected = {
            "tokens": float(is_own_P.sum()),
            "ratio": float(ratio.sum()),
            "clipped_high": float((ratio > 1.2).sum()),
            "clipped_low": 0.0,
            "gap": float((newer_P - older_P)[is_own_P].abs().sum()) if age == 0 else 0.0,
            "compared": float(is_own_P.sum()) if age == 0 else 0.0,
        }
        assert 0 < expected["clipped_high"] < expected["tokens"]
        for name, value in expected.items():
            torch.testing.assert_close(found.sums[name][age], value)
    assert found.max_gap == float((newer_P - older_P)[staleness_P == 0].abs().max())
