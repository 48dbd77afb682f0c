"""What a mini-batch looked like, summed on its device and read once.

Sums by staleness of one row a quantity, so that a ratio or a clip fraction can be told apart by how old the
data was. Nothing here makes the host wait until `totals` is asked for.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dora_rl.algorithms.regularisers import kl_terms
from dora_rl.algorithms.tokens import LossTerms
from dora_rl.trainer.ranks import Ranks
from dora_rl.trainer.tensors import MAX_STALENESS, PolicyTokens

QUANTITIES = (
    "tokens",
    "ratio",
    "clipped_low",
    "clipped_high",
    "policy_kl",
    "entropy",
    "kl",
    "loss",
    "value_loss",
    "imbalance",
    "replayed",
    "gap",
    "compared",
    "corrected",
)

OWN = "loss/"
"""Prefix of the names of metrics that a loss reports of its own."""


class Totals(NamedTuple):
    """Sums over one mini-batch, on the host."""

    sums: dict[str, list[float]]
    """Sum of each quantity, by staleness."""
    max_gap: float
    """Largest absolute difference of recorded and recomputed logprobs, where the weights are the same."""

    @property
    def is_loss_finite(self) -> bool:
        """Whether every token's loss was a number: a gradient can be one where its loss is not."""
        return math.isfinite(self.total("loss")) and math.isfinite(self.total("value_loss"))

    @property
    def are_logprobs_finite(self) -> bool:
        """Whether the policy gave every token a probability: then a loss has numbers to work with."""
        return math.isfinite(self.total("policy_kl")) and math.isfinite(self.total("entropy"))

    def total(self, quantity: str) -> float:
        """The sum of a quantity over all staleness."""
        return sum(self.sums[quantity])

    def mean(self, quantity: str) -> float:
        """The mean of a quantity per policy token."""
        return self.total(quantity) / max(1.0, self.total("tokens"))


class LossMeters:
    """Sums over the tokens of one mini-batch, kept on the device."""

    def __init__(self, device: torch.device, of_loss: Sequence[str] = ()) -> None:
        """`of_loss` are the names under which the loss reports something of its own."""
        self._quantities = (*QUANTITIES, *(f"{OWN}{name}" for name in of_loss))
        size = len(self._quantities), MAX_STALENESS + 1
        self._sums = torch.zeros(size, device=device, dtype=torch.float64)
        self._max_gap = torch.zeros((), device=device)

    @torch.no_grad()
    def add_terms(
        self, tokens: PolicyTokens, logprobs_P: Tensor, entropy_P: Tensor, terms: LossTerms
    ) -> None:
        """Add some tokens, with the quantities that every policy loss has."""
        same_weights_P = logprobs_P if tokens.recomputed_P is None else tokens.recomputed_P
        # Chosen, not multiplied by zero: what is not compared may be no number.
        gap_P = (same_weights_P - tokens.behaviour_P).abs().where(tokens.is_comparable_P, 0.0)
        self.add(
            tokens,
            {
                "tokens": torch.ones_like(logprobs_P),
                "ratio": terms.ratio_T,
                "clipped_low": terms.is_clipped_low_T,
                "clipped_high": terms.is_clipped_high_T,
                # Tokens are of the behaviour policy, the first argument of the KL, so it stands below in k3.
                "policy_kl": kl_terms(tokens.behaviour_P, logprobs_P, "k3"),
                "entropy": entropy_P,
                "gap": gap_P,
                "compared": tokens.is_comparable_P,
            },
        )
        if len(gap_P):
            self._max_gap = torch.maximum(self._max_gap, gap_P.max())

    @torch.no_grad()
    def add(self, tokens: PolicyTokens, values: Mapping[str, Tensor]) -> None:
        """Add up quantities of some policy tokens."""
        if not values:
            return
        values_QP = torch.stack([values_P.double() for values_P in values.values()])
        # A product, not scattered additions: these would come in any order on a GPU.
        levels = torch.arange(MAX_STALENESS + 1, device=values_QP.device)
        sums_QS = values_QP @ (tokens.staleness_P[:, None] == levels).double()
        for name, sums_S in zip(values, sums_QS, strict=True):
            self._sums[self._quantities.index(name)] += sums_S

    def totals(self, ranks: Ranks) -> Totals:
        """The sums over all ranks, copied to the host."""
        sums = ranks.reduce(self._sums.clone(), "sum").tolist()
        max_gap = float(ranks.reduce(self._max_gap.clone(), "max"))
        return Totals(sums=dict(zip(self._quantities, sums, strict=True)), max_gap=max_gap)
