"""From a plan to forward passes over packed tokens.

Fast mode: one pass over all rows. Rows with a short context attend together, those of about one length in one
product; each of the others is a span of its own, read in place. Batch-invariant mode: passes over tiles of a
fixed number of tokens, filled up with rows that write to scratch, a span for each token. Every product, norm
and reduction then has one shape whatever the batch, and every token reads its context from fresh memory by
itself.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dora_rl.engines.native.block_tables import BlockTables
from dora_rl.engines.native.paged import Bundle, Span
from dora_rl.engines.native.scheduling.step_plan import PlannedRow
from dora_rl.model.packed_sequences import filled_up

TILE_ROWS = 16
_SAME_TOKENS = 63
"""Tokens up to which contexts of any length go together: filling up costs less than another product."""
SPLIT_TOKENS = 4
"""Tokens below which a run of rows is not worth a worker of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The tokens, positions and spans that one call of the decoder computes."""

    tokens_T: Tensor
    positions_T: Tensor
    cells_T: Tensor
    spans: tuple[Span, ...]
    bundles: tuple[Bundle, ...] = ()


def split_rows(rows: Sequence[PlannedRow], num_parts: int) -> list[tuple[PlannedRow, ...]]:
    """Divide rows into runs of about as many tokens each, for workers that each read all weights."""
    num_tokens = sum(row.num_tokens for row in rows)
    num_parts = max(1, min(num_parts, num_tokens // SPLIT_TOKENS))
    share = -(-num_tokens // num_parts)
    parts: list[list[PlannedRow]] = [[]]
    room = share
    for row in rows:
        if parts[-1] and row.num_tokens > room and len(parts) < num_parts:
            parts.append([])
            room = share
        parts[-1].append(row)
        room -= row.num_tokens
    return [tuple(part) for part in parts]


def whole_pass(
    rows: Sequence[PlannedRow], last_drawn: Tensor, tables: BlockTables, short_tokens: int
) -> Pass:
    """One pass over all rows of a plan; contexts of up to `short_tokens` are bundled."""
    firsts = list(_firsts(rows))
    slots_R, starts_R, nums_R, firsts_R = torch.tensor(
        [[row.slot for row in rows], [row.start for row in rows], [row.num_tokens for row in rows], firsts]
    )
    offsets_T = torch.arange(firsts[-1] + rows[-1].num_tokens)
    positions_T = offsets_T + (starts_R - firsts_R).repeat_interleave(nums_R)
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    spans = []
    for place, row in enumerate(rows):
        end = row.start + row.num_tokens
        if end <= short_tokens:
            alike[row.num_tokens.bit_length(), max(end, _SAME_TOKENS).bit_length()].append(place)
        else:
            spans.append(_span(row, firsts[place], tables))
    bundles = [
        _bundle(slots_R[places], starts_R[places], nums_R[places], firsts_R[places], tables)
        for places in alike.values()
    ]
    return Pass(
        tokens_T=_tokens(rows, last_drawn),
        positions_T=positions_T,
        cells_T=tables.cells_at(slots_R.repeat_interleave(nums_R), positions_T),
        spans=tuple(spans),
        bundles=tuple(bundles),
    )


def _bundle(
    slots_R: Tensor, starts_R: Tensor, nums_R: Tensor, firsts_R: Tensor, tables: BlockTables
) -> Bundle:
    """Bundle rows with contexts of about one length, filled up to the longest."""
    rows_RC, is_there_RC = filled_up(firsts_R, nums_R)
    num_tokens, end = rows_RC.shape[1], int((starts_R + nums_R).max())
    positions_RC = starts_R[:, None] + torch.arange(num_tokens)
    return Bundle(
        rows_RC=rows_RC,
        is_there_RC=None if num_tokens == 1 else is_there_RC,
        cells_RL=tables.cells_of(slots_R, end),
        is_visible_R1CL=(torch.arange(end) <= positions_RC[:, :, None]).unsqueeze(1),
    )


def tiled_passes(rows: Sequence[PlannedRow], last_drawn: Tensor, tables: BlockTables) -> Iterator[Pass]:
    """The tokens of a plan in passes of one tile each; a tile sees what the tiles before it wrote."""
    places = [(row.slot, position) for row in rows for position in _positions(row)]
    places += [(tables.filler_slot, 0)] * (-len(places) % TILE_ROWS)
    tokens_T = _tokens(rows, last_drawn)
    tokens_T = torch.cat((tokens_T, tokens_T.new_zeros(len(places) - len(tokens_T))))
    for first in range(0, len(places), TILE_ROWS):
        tile = places[first : first + TILE_ROWS]
        yield Pass(
            tokens_T=tokens_T[first : first + TILE_ROWS],
            positions_T=torch.tensor([position for _, position in tile]),
            cells_T=tables.cells_at(*torch.tensor(tile).unbind(1)),
            spans=tuple(_token_span(*place, row, tables) for row, place in enumerate(tile)),
        )


def sampled_rows(rows: Sequence[PlannedRow]) -> tuple[list[int], list[int], list[int]]:
    """For each draw: the token in the step that it follows, its slot, and the position it is for."""
    lasts, slots, positions, end = [], [], [], 0
    for row in rows:
        end += row.num_tokens
        for back in range(row.num_draws, 0, -1):
            lasts.append(end - back)
            slots.append(row.slot)
            positions.append(row.start + row.num_tokens - back + 1)
    return lasts, slots, positions


def _positions(row: PlannedRow) -> range:
    return range(row.start, row.start + row.num_tokens)


def _tokens(rows: Sequence[PlannedRow], last_drawn: Tensor) -> Tensor:
    """Token ids of the rows: known ones and guesses from the plan, others as drawn last in their slot."""
    tokens_T = torch.tensor([token for row in rows for token in (*(row.tokens or (0,)), *row.guesses)])
    awaited = [(index, row) for index, row in zip(_firsts(rows), rows, strict=True) if not row.tokens]
    if awaited:
        slots = torch.tensor([row.slot for _, row in awaited])
        tokens_T[torch.tensor([index for index, _ in awaited])] = last_drawn[slots]
    return tokens_T


def _firsts(rows: Sequence[PlannedRow]) -> Iterator[int]:
    first = 0
    for row in rows:
        yield first
        first += row.num_tokens


def _span(row: PlannedRow, first_row: int, tables: BlockTables) -> Span:
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
