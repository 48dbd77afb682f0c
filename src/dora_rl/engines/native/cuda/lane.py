"""One stream of passes: its own buffers and graphs, so that lanes can run beside one another.

A version with few rows leaves most of a GPU idle; on a lane of its own its passes fill the gaps of the
others'. What lanes share is memory of sequences (cache, tables, slots): who may touch it when is the
executor's to order.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from dora_rl.engines.config import EngineConfig
from dora_rl.engines.native.cuda.cache import BlockCache, Copied, to_device, to_host
from dora_rl.engines.native.cuda.graphs import Filling, Graphs, Shape
from dora_rl.engines.native.cuda.head import Head
from dora_rl.engines.native.cuda.kernels.decode import (
    MAX_SPLITS,
    Split,
    SplitSums,
    decode_attention,
    split_for,
)
from dora_rl.engines.native.cuda.kernels.prefill import prefill_attention, stretch_tokens
from dora_rl.engines.native.cuda.kernels.rotary import Heads, Paging, Turning, rotate_and_store
from dora_rl.engines.native.cuda.kernels.tiled import MAX_ROWS as TILE_ROWS
from dora_rl.engines.native.cuda.mixture import Mixture
from dora_rl.engines.native.cuda.plan_buffers import PlanBuffers, Room
from dora_rl.engines.native.cuda.slots import CUT_ROWS, SlotSampling
from dora_rl.engines.native.cuda.trunk import Tokens, Trunk, Way, way_for
from dora_rl.engines.native.engine_memory import serving_dtype
from dora_rl.engines.native.scheduling.step_plan import PlannedRow
from dora_rl.model.config import ModelConfig, Rope
from dora_rl.model.decoder import Block, Decoder
from dora_rl.model.rope import Rotation

FIXED_SPLIT = 256
"""Tokens of a split in batch-invariant mode."""
DECODES_FILLED = 64
"""How often decode rows beyond a tile are filled up to a power of two before they get their own graph."""
PREFILLS_FILLED = 4
"""How often prefilled tokens, each of which is work, are filled up before they get their own graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Memory that all lanes of a device work on: cache, tables, slots."""

    heads: Heads
    cache: BlockCache
    tables_SB: Tensor
    slots: SlotSampling
    angles: Mapping[Rope | None, Rotation]
    """Cosines and sines by position `[positions, head_dim / 2]`, of each kind of rotary positions."""
    is_fixed: bool
    """Whether the bits of a row must not depend on other rows."""
    launched: set[Shape] = field(default_factory=set)
    """Shapes that were launched before, on whichever lane."""

    @property
    def device(self) -> torch.device:
        """The torch device of all this memory."""
        return self.tables_SB.device

    @property
    def filler_slot(self) -> int:
        """The slot of rows that only fill a bucket."""
        return len(self.tables_SB) - 1

    def split_for(self, num_rows: int, max_context: int) -> Split:
        """How contexts are split among programs; always alike in batch-invariant mode."""
        return (
            self.fixed_split if self.is_fixed else split_for(max(1, num_rows), max_context, self.heads.group)
        )

    @property
    def fixed_split(self) -> Split:
        """The split of contexts in batch-invariant mode."""
        block_size = self.cache.blocks.shape[4]
        return Split(most=-(-self.tables_SB.shape[1] * block_size // FIXED_SPLIT), fixed=FIXED_SPLIT)


class Lane:
    """Runs the rows of plans, one plan after the other, on a stream of its own."""

    def __init__(self, model: ModelConfig, config: EngineConfig, room: Room, shared: Shared) -> None:
        dtype, device = serving_dtype(config), shared.device
        self.room = room
        self._shared = shared
        self._staging = PlanBuffers(
            room, filler_slot=shared.filler_slot, stretch_tokens=stretch_tokens(shared.heads), device=device
        )
        self._hidden_TH = torch.zeros(room.num_hidden, model.hidden_size, dtype=dtype, device=device)
        self._trunk = Trunk(model, max(room.num_rows, room.num_prefilled), dtype, device)
        self._head = Head(model, room.num_rows, dtype, device)
        self._parts = SplitSums.empty(*split_room(room, config), shared.heads, device)
        self._stream = (
            torch.cuda.Stream(device, priority=0 if room.num_prefilled else -1)
            if device.type == "cuda"
            else None
        )
        self._graphs = Graphs(self._stream, shared.launched)
        self._is_done = torch.cuda.Event() if self._stream is not None else None

    # --- order ----------------------------------------------------------------------------------

    def in_order(self) -> AbstractContextManager[object]:
        """Launch what is inside the block behind everything launched on this lane before."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def wait_for(self, other: "Lane") -> None:
        """Make what comes next on this lane wait for an event of another."""
        if self._stream is not None and other._is_done is not None:
            self._stream.wait_event(other._is_done)

    def mark(self) -> None:
        """An event that others can wait for: everything on this lane up to here."""
        if self._is_done is not None:
            self._is_done.record(self._stream)

    def synchronize(self) -> None:
        """Wait on the host until everything on this lane is over."""
        if self._stream is not None:
            self._stream.synchronize()

    # --- a step ---------------------------------------------------------------------------------

    def fits(self, rows: Sequence[PlannedRow]) -> bool:
        """Whether the lane's buffers have room for these rows."""
        # In short first: most plans have too many rows.
        return (
            len(rows) <= self.room.num_rows
            and sum(1 + len(row.guesses) for row in rows) <= self.room.num_rows
            and (bool(self.room.num_prefilled) or all(len(row.tokens) <= 1 for row in rows))
        )

    def run(self, place: int, decoder: Decoder, rows: Sequence[PlannedRow]) -> tuple[Copied | None, int]:
        """Launch a step; return its answers on their way to the host, and how many they are."""
        counts, draws = self._staging.put(rows)
        if num := counts.num_decoded:
            shape_of = partial(self._decode_shape, counts.max_context, counts.has_guesses)
            filling = Filling(shape=partial(shape_of, _coarse(num)), times=DECODES_FILLED)
            self._graphs.run(place, shape_of(num), partial(self._decode, decoder), filling)
        if prefilled := counts.prefilled:
            coarse = partial(self._prefill_shape, *map(_coarse, prefilled))
            filling = Filling(shape=coarse, times=PREFILLS_FILLED)
            self._graphs.run(place, self._prefill_shape(*prefilled), partial(self._prefill, decoder), filling)
        if not counts.num_answers:
            return None, 0
        shape = Shape(kind="draw", room=self.room, sizes=(counts.num_sampled,))
        self._graphs.run(place, shape, partial(self._draw, decoder))
        self._draw_cut(draws)
        return to_host(self._head.answers_3R), counts.num_answers

    def passes_to_rehearse(self, max_positions: int) -> Iterator[tuple[int, int]]:
        """Decode passes that together need every kernel of such passes: rows, and their longest context.

        What a run begins with first: many rows and short contexts.
        """
        sizes = [1 << power for power in range(self.room.num_rows.bit_length())]
        yield from ((size, 1) for size in reversed(sizes))
        if self._shared.is_fixed:
            return
        # Beyond a tile, rows that are filled up less are split otherwise.
        yield from ((num, 1) for num in (96, 112) if num <= self.room.num_rows)
        # Of many rows the context decides.
        if self.room.num_rows >= 128:
            yield from ((128, 1 << power) for power in range(10, max_positions.bit_length() + 1))

    def rehearse(self, decoder: Decoder, num: int, max_context: int) -> None:
        """Launch a pass of rows of nobody, without a graph, unless its like was launched before."""
        shape = self._decode_shape(max_context, False, num)
        if shape not in self._shared.launched:
            with self.in_order():
                self._staging.put(())
                self._decode(decoder, shape)
            self._shared.launched.add(shape)

    def _decode_shape(self, max_context: int, has_guesses: bool, num: int) -> Shape:
        # A tile of rows takes as long whether it is full or not, and few shapes need few graphs.
        num = min(_coarse(num) if num <= TILE_ROWS else num, self.room.num_rows)
        split = self._shared.split_for(num, max_context)
        return Shape(kind="decode", room=self.room, sizes=(num,), split=split, has_guesses=has_guesses)

    def _prefill_shape(self, num: int, num_stretches: int) -> Shape:
        num, most = min(num, self.room.num_prefilled), len(self._staging.stretches_N2)
        # As many stretches as so many tokens have at least.
        num_stretches = min(max(num_stretches, -(-num // self._staging.stretch_tokens)), most)
        return Shape(kind="prefill", room=self.room, sizes=(num, num_stretches))

    def _decode(self, decoder: Decoder, shape: Shape) -> None:
        (num,), split = shape.sizes, shape.split
        assert split is not None, "what is decoded has a split"
        shared, tokens = self._shared, self._tokens(self._staging.decode, num, first_hidden=0)
        way: Way = "fixed" if shared.is_fixed else way_for(num, decoder.config)
        is_fused = not (shared.is_fixed or shape.has_guesses)

        def attend(layer: int, qkv_TD: Tensor, mixed_TD: Tensor) -> None:
            paging, turning = self._paging(layer, tokens), self._turning(decoder, layer)
            if not is_fused:
                rotate_and_store(qkv_TD, shared.heads, turning, paging)
            what = (qkv_TD, mixed_TD, shared.heads, turning, paging, self._parts, split)
            decode_attention(*what, is_fused=is_fused)

        self._trunk.run(decoder, tokens, shared.slots.distributions.drawn_S, attend, way)

    def _prefill(self, decoder: Decoder, shape: Shape) -> None:
        (num, num_stretches), shared = shape.sizes, self._shared
        tokens = self._tokens(self._staging.prefill, num, first_hidden=self.room.num_rows)
        stretches_N2 = self._staging.stretches_N2[:num_stretches]

        def attend(layer: int, qkv_TD: Tensor, mixed_TD: Tensor) -> None:
            paging, turning = self._paging(layer, tokens), self._turning(decoder, layer)
            rotate_and_store(qkv_TD, shared.heads, turning, paging)
            if shared.is_fixed:
                what = (qkv_TD, mixed_TD, shared.heads, turning, paging, self._parts, shared.fixed_split)
                decode_attention(*what, is_fused=False)
            else:
                prefill_attention(qkv_TD, mixed_TD, shared.heads, paging, stretches_N2)

        way: Way = "fixed" if shared.is_fixed else "many"
        self._trunk.run(decoder, tokens, shared.slots.distributions.drawn_S, attend, way)

    def _draw(self, decoder: Decoder, shape: Shape) -> None:
        (num,) = shape.sizes
        rows_R, slots_R, positions_R = (each[:num] for each in self._staging.sample)
        way: Way = "fixed" if self._shared.is_fixed else "many"
        how = self._shared.slots.distributions
        self._head.run(decoder.head_VH, self._hidden_TH, rows_R, slots_R, positions_R, how, way)

    def _draw_cut(self, draws: Sequence[tuple[int, int, int]]) -> None:
        """Draw again for rows whose distribution is cut; rare enough not to be captured."""
        slots = self._shared.slots
        rows = slots.cut_rows([slot for _, slot, _ in draws])
        # One by one where bits must not depend on the batch.
        at_once = 1 if self._shared.is_fixed else CUT_ROWS
        for some in (rows[first : first + at_once] for first in range(0, len(rows), at_once)):
            index = to_device(torch.tensor(some), self._shared.device)
            _, own_slots, positions = zip(*(draws[row] for row in some), strict=True)
            drawn = slots.draw_cut(self._head.logits_RV[index], own_slots, positions)
            self._head.answers_3R[0].index_copy_(0, index, drawn.tokens_R.int())
            logprobs_2R = torch.stack((drawn.logprobs_R, drawn.cut_logprobs_R))
            self._head.logprobs_2R.index_copy_(1, index, logprobs_2R)

    def _tokens(self, words: tuple[Tensor, Tensor, Tensor], num: int, *, first_hidden: int) -> Tokens:
        tokens_T, slots_T, positions_T = (each[:num] for each in words)
        hidden_TH = self._hidden_TH[first_hidden : first_hidden + num]
        return Tokens(tokens_T=tokens_T, slots_T=slots_T, positions_T=positions_T, hidden_TH=hidden_TH)

    def _paging(self, layer: int, tokens: Tokens) -> Paging:
        return Paging(
            cache=self._shared.cache.blocks[layer],
            tables_SB=self._shared.tables_SB,
            slots_T=tokens.slots_T,
            positions_T=tokens.positions_T,
        )

    def _turning(self, decoder: Decoder, layer: int) -> Turning:
        block = decoder.layers[layer]
        assert isinstance(block, Block)
        norms = [getattr(norm, "weight", None) for norm in (block.attention.q_norm, block.attention.k_norm)]
        angles = self._shared.angles[decoder.config.rope_of(layer)]
        return Turning(cos_PD=angles.cos, sin_PD=angles.sin, q_norm_D=norms[0], k_norm_D=norms[1])


def _coarse(count: int) -> int:
    """The next power of two, so that few shapes serve all sizes."""
    return 1 << (count - 1).bit_length()


def split_room(room: Room, config: EngineConfig) -> tuple[int, int]:
    """Rows whose contexts may be split, and into how many parts.

    Where bits must not depend on chunks, prefilled tokens attend one by one, like decoded ones.
    """
    if config.is_batch_invariant:
        return max(room.num_rows, room.num_prefilled), -(-config.limits.max_positions // FIXED_SPLIT) + 1
    return max(room.num_rows, 16), MAX_SPLITS


def lane_bytes(model: ModelConfig, config: EngineConfig, room: Room) -> int:
    """Bytes of everything a lane allocates."""
    size = serving_dtype(config).itemsize
    num_tokens = max(room.num_rows, room.num_prefilled)
    trunk = num_tokens * Trunk.token_width(model) * size + Trunk.part_bytes(model, num_tokens, size)
    head = room.num_rows * Head.row_bytes(model, serving_dtype(config))
    num_rows, num_splits = split_room(room, config)
    parts = num_rows * num_splits * model.num_heads * (model.head_dim + 2) * 4
    arrivals = num_rows * model.num_kv_heads * 4
    staging = (6 * room.num_rows + 5 * room.num_prefilled) * 4
    experts = Mixture.num_bytes(model, num_tokens, size)
    return trunk + head + room.num_hidden * model.hidden_size * size + parts + arrivals + staging + experts
