"""From a plan to forward passes over packed tokens.

Fast mode: one pass over all rows, a span for each. Batch-invariant mode: passes over tiles of a fixed number
of tokens, filled up with rows that write to scratch, a span for each token. Every product, norm and reduction
then has one shape whatever the batch, and every token reads its context from fresh memory by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dora_rl.rollout.native.paged import Span
from dora_rl.rollout.native.tables import BlockTables
from dora_rl.rollout.scheduling.plan import Row

TILE_ROWS = 16
SPLIT_TOKENS = 4
"""Fewer are not worth a worker of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one call of the decoder computes."""

    tokens_T: Tensor
    positions_T: Tensor
    cells_T: Tensor
    spans: tuple[Span, ...]


def split_rows(rows: Sequence[Row], num_parts: int) -> list[tuple[Row, ...]]:
    """Runs of rows with about as many tokens each, for workers that each read all weights."""
    num_tokens = sum(row.num_tokens for row in rows)
    num_parts = max(1, min(num_parts, num_tokens // SPLIT_TOKENS))
    share = -(-num_tokens // num_parts)
    parts: list[list[Row]] = [[]]
    room = share
    for row in rows:
        if parts[-1] and row.num_tokens > room and len(parts) < num_parts:
            parts.append([])
            room = share
        parts[-1].append(row)
        room -= row.num_tokens
    return [tuple(part) for part in parts]


def whole_pass(rows: Sequence[Row], last_drawn: Tensor, tables: BlockTables) -> Pass:
    """All rows of a plan at once."""
    spans, first_row = [], 0
    for row in rows:
        spans.append(_span(row, first_row, tables))
        first_row += row.num_tokens
    places = [(row.slot, position) for row in rows for position in _positions(row)]
    return Pass(
        tokens_T=_tokens(rows, last_drawn),
        positions_T=torch.tensor([position for _, position in places]),
        cells_T=torch.tensor([tables.cell(*place) for place in places]),
        spans=tuple(spans),
    )


def tiled_passes(rows: Sequence[Row], last_drawn: Tensor, tables: BlockTables) -> Iterator[Pass]:
    """The same tokens, a tile at a time; a tile sees what the tiles before it wrote."""
    places = [(row.slot, position) for row in rows for position in _positions(row)]
    places += [(tables.filler_slot, 0)] * (-len(places) % TILE_ROWS)
    tokens_T = _tokens(rows, last_drawn)
    tokens_T = torch.cat((tokens_T, tokens_T.new_zeros(len(places) - len(tokens_T))))
    for first in range(0, len(places), TILE_ROWS):
        tile = places[first : first + TILE_ROWS]
        yield Pass(
            tokens_T=tokens_T[first : first + TILE_ROWS],
            positions_T=torch.tensor([position for _, position in tile]),
            cells_T=torch.tensor([tables.cell(*place) for place in tile]),
            spans=tuple(_token_span(*place, row, tables) for row, place in enumerate(tile)),
        )


def sampled_rows(rows: Sequence[Row]) -> tuple[list[int], list[int], list[int]]:
    """For each sampled row: its last token in the step, its slot, and the position it draws for."""
    lasts, slots, positions, end = [], [], [], 0
    for row in rows:
        end += row.num_tokens
        if row.is_sampled:
            lasts.append(end - 1)
            slots.append(row.slot)
            positions.append(row.start + row.num_tokens)
    return lasts, slots, positions


def _positions(row: Row) -> range:
    return range(row.start, row.start + row.num_tokens)


def _tokens(rows: Sequence[Row], last_drawn: Tensor) -> Tensor:
    """Known tokens from the plan, the others from what was drawn last in their slot."""
    tokens_T = torch.tensor([token for row in rows for token in row.tokens or (0,)])
    awaited = [(index, row) for index, row in zip(_firsts(rows), rows, strict=True) if not row.tokens]
    if awaited:
        slots = torch.tensor([row.slot for _, row in awaited])
        tokens_T[torch.tensor([index for index, _ in awaited])] = last_drawn[slots]
    return tokens_T


def _firsts(rows: Sequence[Row]) -> Iterator[int]:
    first = 0
    for row in rows:
        yield first
        first += row.num_tokens


def _span(row: Row, first_row: int, tables: BlockTables) -> Span:
    num_rows, end = row.num_tokens, row.start + row.num_tokens
    context = tables.run(row.slot, end)
    is_visible = torch.ones(num_rows, end, dtype=torch.bool).tril(row.start) if num_rows > 1 else None
    return Span(
        first_row=first_row,
        num_rows=num_rows,
        context=tables.cells(row.slot, end) if context is None else context,
        is_visible=is_visible,
    )


def _token_span(slot: int, position: int, row: int, tables: BlockTables) -> Span:
    # Always gathered, run or not: the bits may depend on how memory is laid out.
    context = tables.cells(slot, position + 1)
    return Span(first_row=row, num_rows=1, context=context, is_visible=None)
