"""Beside a forward pass over experts: what the routers said, and experts they are held to.

Who wants neither passes none. What is noted is of the whole pass, so it serves one version at a time.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional


class RouterNotes:
    """The scores and choices of every layer's router in one pass over tokens."""

    def __init__(self, given: Mapping[int, Tensor] | None = None) -> None:
        """`given[layer]` are the experts of each token, `[tokens, active]`; negative where it may choose."""
        self._given = given or {}
        self.scores: dict[int, Tensor] = {}
        """Scores of each layer's router, `[tokens, experts]`, with gradient where there is one."""
        self.chosen: dict[int, Tensor] = {}
        """Experts of each token by layer, `[tokens, active]`."""

    def given(self, layer: int) -> Tensor | None:
        """The experts that a layer's router is held to; None where it may choose all."""
        return self._given.get(layer)

    def note(self, layer: int, scores_TE: Tensor, experts_TA: Tensor) -> None:
        """Note what a layer's router said, and the experts that were taken."""
        self.scores[layer], self.chosen[layer] = scores_TE, experts_TA

    def imbalance(self) -> Tensor:
        """How unevenly the experts are used, averaged over layers: the number of active experts where they
        are used alike, and more where few are preferred.

        Of a layer, `experts * sum(share of tokens * mean probability)`: the gradient lowers the probability
        of experts that get more than their share.
        """
        layers = zip(self.scores.values(), self.chosen.values(), strict=True)
        return torch.stack([_imbalance(scores_TE, experts_TA) for scores_TE, experts_TA in layers]).mean()


def _imbalance(scores_TE: Tensor, experts_TA: Tensor) -> Tensor:
    num_tokens, num_experts = scores_TE.shape
    counts_E = scores_TE.new_zeros(num_experts, dtype=torch.float32)
    chosen = experts_TA.flatten()
    counts_E.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.float32))
    probabilities_E = functional.softmax(scores_TE, dim=-1, dtype=torch.float32).mean(dim=0)
    return num_experts * (counts_E / num_tokens) @ probabilities_E
