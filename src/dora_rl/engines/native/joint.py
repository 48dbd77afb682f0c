"""Several versions in one pass: what has no weights runs once for all rows, what has runs for each version's.

A small model is done with a product before the next can be asked for, so a pass costs what asking costs. Rows
of several versions then share everything but the weights: rotation, attention, activation, sampling.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from dora_rl.engines.native.packed_linear import PackedLinear, Prepared
from dora_rl.engines.native.tiled_experts import TiledExperts
from dora_rl.model.decoder import Decoder, RmsNorm
from dora_rl.model.experts import ExpertMlp

_WEIGHTED = (nn.Embedding, nn.Linear, PackedLinear, RmsNorm, ExpertMlp, TiledExperts)


class PassRows:
    """The versions whose rows follow one another in the pass in progress, and how many rows each has."""

    def __init__(self) -> None:
        self.versions: Sequence[int] = ()
        self.num_rows: Sequence[int] = ()

    def set(self, versions: Sequence[int], num_rows: Sequence[int]) -> None:
        """Set whose rows the next calls have."""
        self.versions, self.num_rows = versions, list(num_rows)


class Segmented(nn.Module):
    """One module of every version, each applied to the rows of its own version."""

    def __init__(self, pass_rows: PassRows) -> None:
        super().__init__()
        self._pass_rows = pass_rows
        self.of: dict[int, nn.Module] = {}
        """The module of each version, by version."""

    def forward(self, rows: Tensor) -> Tensor:
        """Outputs for the rows of all versions, in order."""
        parts = zip(self._pass_rows.versions, rows.split(self._pass_rows.num_rows), strict=True)
        return torch.cat([self.of[version](part) for version, part in parts])


class Joint:
    """All resident versions as one decoder."""

    def __init__(self, model: Prepared) -> None:
        """Build the joint decoder with the layout of `model`, which is not kept."""
        assert isinstance(model.decoder, Decoder), "transformers' modules are not joined"
        self.pass_rows = PassRows()
        self._decoder = _skeleton(model.decoder, self.pass_rows)
        self._segments = {
            name: module for name, module in self._decoder.named_modules() if isinstance(module, Segmented)
        }
        self._head = Segmented(self.pass_rows)

    def add(self, version: int, prepared: Prepared) -> None:
        """Serve one more version."""
        for name, segmented in self._segments.items():
            segmented.of[version] = prepared.decoder.get_submodule(name)
        self._head.of[version] = prepared.head

    def remove(self, version: int) -> None:
        """Stop serving a version."""
        for segmented in (*self._segments.values(), self._head):
            del segmented.of[version]

    @property
    def decoder(self) -> Decoder:
        """The decoder that gives hidden states of the rows in `pass_rows`."""
        return self._decoder

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Logits over the vocabulary, float32, of the rows in `pass_rows`."""
        scores: Tensor = self._head(hidden_RH.float())
        return scores


def _skeleton(decoder: Decoder, pass_rows: PassRows) -> Decoder:
    """The same decoder with placeholders for all modules that have weights."""
    weighted = [name for name, module in decoder.named_modules() if isinstance(module, _WEIGHTED)]
    outermost = [name for name in weighted if not any(name.startswith(f"{other}.") for other in weighted)]
    holes: dict[int, nn.Module] = {
        id(decoder.get_submodule(name)): Segmented(pass_rows) for name in outermost
    }
    return deepcopy(decoder, holes)
