"""Keys and values in blocks, and attention over them.

The cache is one tensor, `[layers, 2, cells, kv heads, head size]`; block `b` is the cells from
`b * block_size` on. Where a sequence's blocks follow one another its keys are read in place, otherwise they
are gathered first. Block 0 is scratch: rows that only fill a tile write there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from dora_rl.engines.config import Limits
from dora_rl.engines.native.copies import independent
from dora_rl.model.attention import is_within
from dora_rl.model.config import ModelSizes


class PagedCache:
    """The KV of every resident sequence, in blocks."""

    def __init__(self, config: ModelSizes, limits: Limits, dtype: torch.dtype) -> None:
        num_cells = (limits.num_blocks + 1) * limits.block_size
        self.block_size = limits.block_size
        # Zeros, not whatever was there: what is masked is still multiplied, and must not be NaN.
        self.cells = torch.zeros(
            config.num_layers, 2, num_cells, config.num_kv_heads, config.head_dim, dtype=dtype
        )

    @staticmethod
    def cell_bytes(config: ModelSizes, dtype: torch.dtype) -> int:
        """Bytes of the KV of one token."""
        return config.num_layers * 2 * config.kv_size * dtype.itemsize

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target), as if one after the other."""
        for batch in independent(pairs):
            sources, targets = (self.cells_of(torch.tensor(side)) for side in zip(*batch, strict=True))
            self.cells.index_copy_(2, targets, self.cells.index_select(2, sources))

    def read(self, blocks: Sequence[int], num_tokens: int) -> Tensor:
        """A copy of the KV of the first tokens: `[layers, 2, num_tokens, kv heads, head size]`."""
        return self.cells.index_select(2, self.cells_of(torch.tensor(blocks))[:num_tokens])

    def write(self, blocks: Sequence[int], kv: Tensor) -> None:
        """Write KV back in the form that `read` gave."""
        self.cells.index_copy_(2, self.cells_of(torch.tensor(blocks))[: kv.shape[2]], kv)

    def cells_of(self, blocks_B: Tensor) -> Tensor:
        """The cells of these blocks, in order."""
        return (blocks_B[:, None] * self.block_size + torch.arange(self.block_size)).flatten()


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive rows of a pass that belong to one sequence, and where their context lies."""

    first_row: int
    num_rows: int
    context: slice | Tensor
    """Cells of everything the span's last row sees, in order: a slice where they are one run."""
    is_visible: Tensor | None
    """Which context each row sees, `[rows, context]`; None for a single row, which sees all."""

    def within(self, window: int) -> "Span":
        """The same rows, each of which sees the last `window` tokens of its context."""
        num_tokens = len(self.context) if isinstance(self.context, Tensor) else _length(self.context)
        first = max(0, num_tokens - self.num_rows - window + 1)
        is_visible = self.is_visible
        if is_visible is not None:
            own_C1 = torch.arange(num_tokens - self.num_rows, num_tokens)[:, None]
            is_visible = is_within(own_C1, torch.arange(first, num_tokens), window)
        return Span(
            first_row=self.first_row,
            num_rows=self.num_rows,
            context=_behind(self.context, first),
            is_visible=is_visible,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Sequences with short contexts that attend together, filled up to one length."""

    rows_RC: Tensor
    """Row numbers of the pass, the rows of one sequence in each line."""
    is_there_RC: Tensor | None
    """Which of the bundle's rows are real and not filling; None where all are."""
    cells_RL: Tensor
    """Cells of each sequence's context, in order."""
    is_visible_R1CL: Tensor

    def within(self, window: int) -> "Bundle":
        """The same rows, each of which sees the last `window` tokens of its context."""
        # What a row sees is a run from the first token on, so its length tells where the row stands.
        lengths_R1C1 = self.is_visible_R1CL.sum(-1, keepdim=True)
        is_recent_R1CL = torch.arange(self.cells_RL.shape[1]) >= lengths_R1C1 - window
        return replace(self, is_visible_R1CL=self.is_visible_R1CL & is_recent_R1CL)


class PagedAttention:
    """Writes the keys and values of a pass to the cache, then lets every row see its own sequence.

    Spans and bundles together cover all rows of the pass.
    """

    def __init__(
        self, cache: PagedCache, cells_T: Tensor, spans: Sequence[Span], bundles: Sequence[Bundle]
    ) -> None:
        self._cells = cache.cells
        self._cells_T = cells_T
        self._seen: dict[int | None, tuple[Sequence[Span], Sequence[Bundle]]] = {None: (spans, bundles)}
        """What the rows see, by window."""

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None = None
    ) -> Tensor:
        keys, values = self._cells[layer].unbind(0)
        keys.index_copy_(0, self._cells_T, k_TKD)
        values.index_copy_(0, self._cells_T, v_TKD)
        q_TKGD = q_THD.view(len(q_THD), k_TKD.shape[1], -1, q_THD.shape[2])
        mixed_TKGD = torch.empty_like(q_TKGD)
        spans, bundles = self._within(window)
        for bundle in bundles:
            _attend_bundle(mixed_TKGD, q_TKGD, keys, values, bundle)
        # Views that all spans have in common are made once: a step has thousands of spans and layers.
        q_1KGD = q_TKGD.unsqueeze(1).unbind(0)
        k_1KLD, v_1KLD = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
        for span in spans:
            k, v = _context(k_1KLD, span.context), _context(v_1KLD, span.context)
            last_row = span.first_row + span.num_rows
            if span.is_visible is None:
                mixed = functional.scaled_dot_product_attention(q_1KGD[span.first_row], k, v)
            else:
                mixed = _attend_chunk(q_TKGD[span.first_row : last_row], k, v, span.is_visible)
            mixed_TKGD[span.first_row : last_row] = mixed
        return mixed_TKGD.flatten(1, 2)

    def _within(self, window: int | None) -> tuple[Sequence[Span], Sequence[Bundle]]:
        if window is not None and window not in self._seen:
            spans, bundles = self._seen[None]
            self._seen[window] = (
                [each.within(window) for each in spans],
                [each.within(window) for each in bundles],
            )
        return self._seen[window]


def _attend_bundle(mixed_TKGD: Tensor, q_TKGD: Tensor, keys: Tensor, values: Tensor, bundle: Bundle) -> None:
    """Attention of a bundle. Query heads that share keys are rows of one product: no key is repeated."""
    group, num_tokens = q_TKGD.shape[2], bundle.rows_RC.shape[1]
    q_RKGCD = q_TKGD[bundle.rows_RC].permute(0, 2, 3, 1, 4)
    k_RKLD, v_RKLD = (cells[bundle.cells_RL].transpose(1, 2) for cells in (keys, values))
    is_visible = bundle.is_visible_R1CL
    if num_tokens > 1:
        is_visible = is_visible.repeat(1, 1, group, 1)
    mixed = functional.scaled_dot_product_attention(q_RKGCD.flatten(2, 3), k_RKLD, v_RKLD, is_visible)
    mixed_RCKGD = mixed.unflatten(2, (group, num_tokens)).permute(0, 3, 1, 2, 4)
    if bundle.is_there_RC is None:
        mixed_TKGD.index_copy_(0, bundle.rows_RC.flatten(), mixed_RCKGD.flatten(0, 1))
    else:
        mixed_TKGD[bundle.rows_RC[bundle.is_there_RC]] = mixed_RCKGD[bundle.is_there_RC]


def _length(run: slice) -> int:
    return int(run.stop - run.start)


def _behind(context: slice | Tensor, first: int) -> slice | Tensor:
    return slice(context.start + first, context.stop) if isinstance(context, slice) else context[first:]


def _context(cells_1KLD: Tensor, context: slice | Tensor) -> Tensor:
    if isinstance(context, slice):
        return cells_1KLD.narrow(2, context.start, context.stop - context.start)
    # Gathered cell by cell, as they lie in memory.
    return cells_1KLD.transpose(1, 2)[:, context].transpose(1, 2)


def _attend_chunk(q_CKGD: Tensor, k_1KLD: Tensor, v_1KLD: Tensor, is_visible: Tensor) -> Tensor:
    """Attention of one span. Query heads that share keys are rows of one product: no key is repeated."""
    num_rows, _, group, _ = q_CKGD.shape
    q_KRD = q_CKGD.permute(1, 2, 0, 3).flatten(1, 2)
    mixed_KRD: Tensor = functional.scaled_dot_product_attention(
        q_KRD[None], k_1KLD, v_1KLD, is_visible.repeat(group, 1)
    )[0]
    mixed_CKGD: Tensor = mixed_KRD.unflatten(1, (group, num_rows)).permute(2, 0, 1, 3)
    return mixed_CKGD
