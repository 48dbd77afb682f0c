"""The mixture of experts, as reference: every token meets exactly its experts, in an order that is fixed.

Tokens are sorted by expert, so each expert is one product over its own rows; no token is dropped and none is
padded. Results go back to their token by a permutation and are summed over the expert's rank, not added up as
they arrive, so the outcome does not depend on timing.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dora_rl.model.config import Experts
from dora_rl.model.families import Activation
from dora_rl.model.router_notes import RouterNotes


class ExpertMlp(nn.Module):
    """A router and its stacked experts: `gate_up [E, 2 I, H]`, `down [E, H, I]`."""

    def __init__(self, hidden_size: int, experts: Experts, layer: int) -> None:
        super().__init__()
        self.layer = layer
        count, inner = experts.num_experts, experts.intermediate_size
        self.experts = experts
        self.router = nn.Linear(hidden_size, count, bias=False)
        self.gate_up = nn.Parameter(torch.empty(count, 2 * inner, hidden_size))
        self.down = nn.Parameter(torch.empty(count, hidden_size, inner))

    def forward(self, hidden_TH: Tensor, routing: RouterNotes | None = None) -> Tensor:
        """Mix the outputs of each token's experts by the router's weights."""
        weights_TA, experts_TA = self.route(hidden_TH, routing)
        order = experts_TA.flatten().argsort(stable=True)
        rows = hidden_TH[order // self.experts.num_active]
        counts = experts_TA.flatten().bincount(minlength=self.experts.num_experts)
        outputs = self._run(rows, counts.tolist())
        outputs_TAH: Tensor = outputs[order.argsort()].unflatten(0, experts_TA.shape)
        return (outputs_TAH.float() * weights_TA[..., None]).sum(dim=1).to(hidden_TH.dtype)

    def route(self, hidden_TH: Tensor, routing: RouterNotes | None = None) -> tuple[Tensor, Tensor]:
        """The float32 weights and the indices of each token's active experts, heaviest first or as given."""
        scores_TE = self.router(hidden_TH)
        if routing is None:
            return self.choose(scores_TE)
        weights_TA, experts_TA = self.choose(scores_TE, routing.given(self.layer))
        routing.note(self.layer, scores_TE, experts_TA)
        return weights_TA, experts_TA

    def choose(self, scores_TE: Tensor, given_TA: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The weights and the indices of each token's active experts, from the router's scores.

        Where experts are given, they are taken; their weights are still the router's.
        """
        probabilities = functional.softmax(scores_TE, dim=-1, dtype=torch.float32)
        weights, experts = probabilities.topk(self.experts.num_active, dim=-1)
        if given_TA is not None:
            experts = torch.where(given_TA < 0, experts, given_TA)
            weights = probabilities.gather(-1, experts)
        if self.experts.is_normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights, experts

    def _run(self, rows: Tensor, counts: list[int]) -> Tensor:
        # unbind, not indexing: its backward writes each gradient once instead of a stack of zeros per expert.
        parts = zip(rows.split(counts), self.gate_up.unbind(), self.down.unbind(), strict=True)
        return torch.cat([gated(own @ up.T) @ down.T for own, up, down in parts if len(own)])


def gated(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """`activation(gate) * up` of a fused projection."""
    gate, up = gate_up.chunk(2, dim=-1)
    bent = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
    return bent * up
