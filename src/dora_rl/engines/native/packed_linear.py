"""A version prepared for products of few rows: its matrices laid out as the CPU multiplies them.

A decode step multiplies a handful of rows with every matrix. Laid out by rows, a matrix is rearranged at
every product, which costs more than the product; so each is rearranged once, when the version comes in. The
parameters stay as they are beside it, for deltas; embedding and norms are shared.
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from dora_rl.engines.native.tiled_experts import TiledExperts
from dora_rl.model.config import ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.experts import ExpertMlp
from dora_rl.model.hf.hf_decoder import HfDecoder
from dora_rl.model.language_model import LanguageModel

PACKED_FROM = 2**17
"""Number of values from which on a matrix is worth a packed copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One version with packed matrices, ready to serve."""

    decoder: LanguageModel
    head: nn.Module

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Logits over the vocabulary, float32."""
        scores: Tensor = self.head(hidden_RH.float())
        return scores


class PackedLinear(nn.Module):
    """A product with a rearranged copy of a matrix; with the matrix itself where there is nothing to gain."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._is_packed = can_pack(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._is_packed else weight
        self._bias = bias

    def forward(self, rows: Tensor) -> Tensor:
        """`rows @ weight.T + bias`."""
        if not self._is_packed:
            return functional.linear(rows, self._weight, self._bias)
        return _multiply(rows, self._weight, self._bias)


def _multiply(rows: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return product


def can_pack(weight: Tensor) -> bool:
    """Whether a matrix can be packed by this build of torch, and gains by it.

    Half precision is left to the machine's own way, and a product with a small matrix is over before the
    library has found out how to go about it.
    """
    is_worth_it = weight.dtype == torch.float32 and weight.numel() >= PACKED_FROM
    return is_worth_it and torch.backends.mkldnn.is_available() and _packs_well()


@cache
def _packs_well() -> bool:
    """Whether the library's packing operators work here: they are not a public promise."""
    rows, weight = torch.randn(3, 8), torch.randn(5, 8)
    try:
        product = _multiply(rows, torch.ops.mkldnn._reorder_linear_weight(weight), None)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(product, rows @ weight.T, atol=1e-5)


class OwnHead(nn.Module):
    """The head of a model that does more to its logits than multiply."""

    def __init__(self, decoder: HfDecoder) -> None:
        super().__init__()
        self.decoder, self._dtype = decoder, decoder.dtype

    def forward(self, hidden_RH: Tensor) -> Tensor:
        """Logits over the vocabulary."""
        return self.decoder.logits(hidden_RH.to(self._dtype))


@torch.no_grad()
def prepare(decoder: LanguageModel, *, has_tiles: bool = False) -> Prepared:
    """A decoder over the same parameters, every matrix packed; for tiles of a fixed size if `has_tiles`.

    Modules of transformers stay as they are, as they may look at their own weights; only the head is packed.
    """
    if isinstance(decoder, HfDecoder):
        head = (
            PackedLinear(decoder.head_VH.detach().float(), None)
            if decoder.has_plain_head
            else OwnHead(decoder)
        )
        return Prepared(decoder=decoder, head=head)
    # The memo stands for the copies of the parameters: modules are copied, parameters shared.
    served = deepcopy(decoder, {id(parameter): parameter for parameter in decoder.parameters()})
    for module in list(served.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and child is not served.head:
                setattr(module, name, PackedLinear(child.weight.detach(), _detached(child.bias)))
            elif has_tiles and isinstance(child, ExpertMlp):
                setattr(module, name, TiledExperts(child))
    return Prepared(decoder=served, head=PackedLinear(served.head_VH.detach().float(), None))


def packed_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of the packed copies of one version."""
    decoder = Decoder.outline(model).to(dtype)
    matrices = [each.weight for each in decoder.layers.modules() if isinstance(each, nn.Linear)]
    head = decoder.head_VH.float()
    has_own_head = dtype != torch.float32 or can_pack(head)
    return has_own_head * head.nbytes + sum(each.nbytes for each in matrices if can_pack(each))


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()
