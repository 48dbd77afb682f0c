"""Experts whose bits do not depend on who else chose them.

How many tokens an expert gets depends on the batch, and so would the shape of its product. Here every expert
that some token of a tile chose multiplies the whole tile, and each token takes what is its own: more
arithmetic, over weights that have to be read in any case, and one shape.
"""

from torch import Tensor, nn
from torch.nn import functional

from dora_rl.model.experts import ExpertMlp, gated
from dora_rl.model.router_notes import RouterNotes


class TiledExperts(nn.Module):
    """An expert layer for tiles of a fixed number of tokens."""

    def __init__(self, experts: ExpertMlp) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, tile_TH: Tensor, routing: RouterNotes | None = None) -> Tensor:
        """Mix the outputs of each token's experts by the router's weights."""
        weights_TA, experts_TA = self.experts.route(tile_TH, routing)
        chosen_TAH = tile_TH.new_zeros(*experts_TA.shape, tile_TH.shape[1])
        for expert in experts_TA.unique().tolist():
            is_own_TA1 = (experts_TA == expert).unsqueeze(-1)
            chosen_TAH = chosen_TAH.where(~is_own_TA1, self._run(expert, tile_TH).unsqueeze(1))
        return (chosen_TAH.float() * weights_TA[..., None]).sum(dim=1).to(tile_TH.dtype)

    def _run(self, expert: int, tile_TH: Tensor) -> Tensor:
        inner_TI = gated(functional.linear(tile_TH, self.experts.gate_up[expert]))
        return functional.linear(inner_TI, self.experts.down[expert])
