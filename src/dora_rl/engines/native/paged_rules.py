"""Attention over the paged cache by the rules of each layer: windows, caps and sinks.

For models of transformers. Spans and bundles are those of `PagedAttention`, and so is what every row may see;
a window takes away what lies further back.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dora_rl.engines.native.paged import Bundle, PagedCache, Span
from dora_rl.model.hf.attention import AttentionRules, attend


class PagedRules:
    """Writes the keys and values of a pass to the cache, then lets every row see its own sequence.

    Spans and bundles together cover all rows of the pass. Implements RuledAttention.
    """

    def __init__(
        self, cache: PagedCache, cells_T: Tensor, spans: Sequence[Span], bundles: Sequence[Bundle]
    ) -> None:
        self._cells = cache.cells
        self._cells_T = cells_T
        self._spans = spans
        self._bundles = bundles

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, rules: AttentionRules
    ) -> Tensor:
        keys, values = self._cells[layer].unbind(0)
        keys.index_copy_(0, self._cells_T, k_TKD)
        values.index_copy_(0, self._cells_T, v_TKD)
        mixed_THD = torch.empty_like(q_THD)
        for bundle in self._bundles:
            _attend_bundle(mixed_THD, q_THD, keys, values, bundle, rules)
        for span in self._spans:
            rows = slice(span.first_row, span.first_row + span.num_rows)
            k, v = (cells[span.context].transpose(0, 1)[None] for cells in (keys, values))
            positions_L1 = torch.arange(k.shape[2] - span.num_rows, k.shape[2])[:, None]
            mixed = attend(q_THD[rows].transpose(0, 1)[None], k, v, positions_L1, rules)
            mixed_THD[rows] = mixed[0].transpose(0, 1)
        return mixed_THD


def _attend_bundle(
    mixed_THD: Tensor, q_THD: Tensor, keys: Tensor, values: Tensor, bundle: Bundle, rules: AttentionRules
) -> None:
    q_RHCD = q_THD[bundle.rows_RC].transpose(1, 2)
    k_RKLD, v_RKLD = (cells[bundle.cells_RL].transpose(1, 2) for cells in (keys, values))
    # A row sees everything up to itself, so their number is its position.
    positions_R1C1 = bundle.is_visible_R1CL.sum(-1, keepdim=True) - 1
    mixed_RCHD = attend(q_RHCD, k_RKLD, v_RKLD, positions_R1C1, rules).transpose(1, 2)
    if bundle.is_there_RC is None:
        mixed_THD.index_copy_(0, bundle.rows_RC.flatten(), mixed_RCHD.flatten(0, 1))
    else:
        mixed_THD[bundle.rows_RC[bundle.is_there_RC]] = mixed_RCHD[bundle.is_there_RC]
