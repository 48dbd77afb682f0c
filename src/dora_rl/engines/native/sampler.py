"""Draws and their log-probabilities, row by row.

A draw is the largest of logit / temperature plus keyed Gumbel noise, so it depends on its own row and its own
noise only: on no batch, order or device. The log-probability recorded is the one at the sampling temperature
over the full vocabulary, and where top-k, top-p or min-p cut, also the one after the cut.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dora_rl.engines.native.philox import gumbel
from dora_rl.engines.native.scheduling.step_plan import Entrant


class Drawn(NamedTuple):
    """One token a row, with its two log-probabilities (equal where nothing is cut)."""

    tokens_R: Tensor
    logprobs_R: Tensor
    cut_logprobs_R: Tensor


class Sampler:
    """Draws tokens; holds the distribution and the random stream of every slot."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self._temperature = torch.ones(num_slots, device=device)
        self._is_greedy = torch.zeros(num_slots, dtype=torch.bool, device=device)
        self._is_cut = torch.zeros(num_slots, dtype=torch.bool, device=device)
        self._top_k = torch.full((num_slots,), vocab_size, device=device)
        self._top_p = torch.ones(num_slots, device=device)
        self._min_p = torch.zeros(num_slots, device=device)
        self._streams = torch.zeros(num_slots, 4, dtype=torch.int64, device=device)
        self._vocab_size = vocab_size

    def enter(self, entrants: Sequence[Entrant]) -> None:
        """Set how slots with new sequences draw."""
        if not entrants:
            return
        # The last of those that were given one slot has it.
        last = {entrant.slot: entrant for entrant in entrants}
        slots, samplings = list(last), [entrant.sampling for entrant in last.values()]
        most = self._vocab_size
        for values, wanted in (
            (self._temperature, [1.0 if each.is_greedy else each.temperature for each in samplings]),
            (self._is_greedy, [each.is_greedy for each in samplings]),
            (self._is_cut, [each.is_cut for each in samplings]),
            (self._top_k, [min(each.top_k or most, most) for each in samplings]),
            (self._top_p, [each.top_p for each in samplings]),
            (self._min_p, [each.min_p for each in samplings]),
            (self._streams, [entrant.stream for entrant in last.values()]),
        ):
            values[slots] = torch.tensor(wanted, dtype=values.dtype, device=values.device)

    def draw(self, logits_RV: Tensor, slots_R: Tensor, positions_R: Tensor) -> Drawn:
        """Draw the token of each row that goes to `positions_R`. Overwrites the logits."""
        logits_RV.div_(self._temperature[slots_R, None])
        mass_R = logits_RV.logsumexp(dim=1)
        kept_RV, kept_mass_R = self._cut(logits_RV, slots_R, mass_R)
        tokens_R = self._pick(kept_RV, slots_R, positions_R)
        scores_R = logits_RV.gather(1, tokens_R[:, None]).squeeze(1)
        return Drawn(tokens_R, scores_R - mass_R, scores_R - kept_mass_R)

    def _cut(self, logits_RV: Tensor, slots_R: Tensor, mass_R: Tensor) -> tuple[Tensor, Tensor]:
        """Logits with excluded tokens at minus infinity, and the log of the probability that is left."""
        rows = self._is_cut[slots_R].nonzero().squeeze(1)
        if not len(rows):
            return logits_RV, mass_R
        slots = slots_R[rows]
        cut = keep_likeliest(logits_RV[rows], self._top_k[slots], self._top_p[slots], self._min_p[slots])
        kept_RV, kept_mass_R = logits_RV.clone(), mass_R.clone()
        kept_RV[rows], kept_mass_R[rows] = cut, cut.logsumexp(dim=1)
        return kept_RV, kept_mass_R

    def _pick(self, kept_RV: Tensor, slots_R: Tensor, positions_R: Tensor) -> Tensor:
        is_greedy_R = self._is_greedy[slots_R]
        if is_greedy_R.all():
            return kept_RV.argmax(dim=1)
        noise_RV = gumbel(self._streams[slots_R], positions_R, self._vocab_size)
        return noise_RV.masked_fill_(is_greedy_R[:, None], 0.0).add_(kept_RV).argmax(dim=1)


def keep_likeliest(logits_RV: Tensor, top_k_R: Tensor, top_p_R: Tensor, min_p_R: Tensor) -> Tensor:
    """Exclude tokens by top-k, then by top-p of what that kept, then by min-p of the likeliest."""
    sorted_RV, order_RV = logits_RV.sort(dim=1, descending=True, stable=True)
    rank_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    sorted_RV = sorted_RV.masked_fill(rank_V >= top_k_R[:, None], -torch.inf)
    shares_RV = sorted_RV.softmax(dim=1)
    mass_above_RV = shares_RV.cumsum(dim=1) - shares_RV
    is_excluded = (mass_above_RV >= top_p_R[:, None]) | (shares_RV < min_p_R[:, None] * shares_RV[:, :1])
    # The likeliest stays whatever the rounding says.
    is_excluded[:, 0] = False
    return sorted_RV.masked_fill(is_excluded, -torch.inf).gather(1, order_RV.argsort(dim=1))
