"""Carries out plans on a GPU: moves, tables, a pass over decoded tokens, one over prefilled tokens, draws.

Nothing here waits for the device but `Launched.result` and KV on its way out. Order on the device is the order of
launches, which is the order of plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dora_rl.model.config import ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.rope import Rotary
from dora_rl.rollout.native.cuda.cache import BlockCache, to_device
from dora_rl.rollout.native.cuda.graphs import Graphs
from dora_rl.rollout.native.cuda.head import Head
from dora_rl.rollout.native.cuda.kernels.decode import MAX_SPLITS, Parts, Split, decode_attention, split_for
from dora_rl.rollout.native.cuda.kernels.prefill import prefill_attention, stretch_tokens
from dora_rl.rollout.native.cuda.kernels.rotary import Heads, Paging, Turning, rotate_and_store
from dora_rl.rollout.native.cuda.places import Places
from dora_rl.rollout.native.cuda.slots import SlotSampling
from dora_rl.rollout.native.cuda.staging import Counts, Staging
from dora_rl.rollout.native.cuda.trunk import FEW_ROWS, Tokens, Trunk, Way
from dora_rl.rollout.native.setup import EngineConfig
from dora_rl.rollout.scheduling.plan import CopyBlock, Discard, Move, Park, Plan, Row, Sampled, Table, Unpark

FIXED_SPLIT = 256
"""Tokens of a split in batch-invariant mode."""
_NOTHING = Sampled(tokens=(), logprobs=(), cut_logprobs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Host memory that a device writes to, and the moment from which it may be read."""

    values: Tensor
    event: torch.cuda.Event | None

    def wait(self) -> Tensor:
        """The values, once they are there."""
        if self.event is not None:
            self.event.synchronize()
        return self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """A step under way."""

    copied: Copied | None
    num_answers: int

    def result(self) -> Sampled:
        """Wait for it."""
        if self.copied is None:
            return _NOTHING
        answers_3R = self.copied.wait()[:, : self.num_answers]
        logprobs, cut_logprobs = answers_3R[1:].view(torch.float32).tolist()
        return Sampled(
            tokens=tuple(answers_3R[0].tolist()), logprobs=tuple(logprobs), cut_logprobs=tuple(cut_logprobs)
        )


class CudaExecutor:
    """The decoder over a paged cache on one device. On the CPU it runs under Triton's interpreter, for tests."""

    def __init__(self, model: ModelConfig, config: EngineConfig, device: torch.device) -> None:
        limits, dtype = config.limits, config.torch_dtype
        self._device = device
        self._limits = limits
        self._is_fixed = config.is_batch_invariant
        self._heads = Heads(
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            eps=model.norm_eps,
        )
        self._places = Places()
        self._graphs = Graphs(self._device)
        self._cache = BlockCache(model, limits, dtype, self._device)
        self._parked: dict[int, Copied] = {}
        table_size = (limits.max_running + 1, limits.blocks_for(limits.max_positions))
        self._tables_SB = torch.zeros(table_size, dtype=torch.int32, device=self._device)
        self._slots = SlotSampling(limits.max_running + 1, model.vocab_size, self._device)
        self._staging = Staging(limits, stretch_tokens(self._heads), self._device)
        num_hidden = Staging.num_hidden(limits)
        self._hidden_TH = torch.zeros(num_hidden, model.hidden_size, dtype=dtype, device=self._device)
        self._trunk = Trunk(model, limits.step_tokens, dtype, self._device)
        self._head = Head(model, limits.max_running, dtype, self._device)
        self._most_splits = _most_splits(config)
        self._parts = Parts.empty(_split_rows(config), self._heads, self._most_splits, self._device)
        rotation = Rotary(model.rope, model.head_dim).rotation(
            torch.arange(limits.max_positions, device=self._device)
        )
        self._cos_PD, self._sin_PD = rotation.cos.squeeze(1).contiguous(), rotation.sin.squeeze(1).contiguous()

    # --- a step ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Answers:
        """Begin a step behind those before it."""
        self._move(plan.moves)
        self._update(plan.tables)
        if plan.entrants:
            self._slots.enter(plan.entrants)
        if plan.version is None:
            return Answers(copied=None, num_answers=0)
        return self._run(self._places.place_of(plan.version), plan.rows)

    def _run(self, place: int, rows: Sequence[Row]) -> Answers:
        counts, draws = self._staging.put(rows)
        decoder = self._places.decoder_at(place)
        if counts.num_decoded:
            split = self._split(counts)
            key = (place, "decode", counts.num_decoded, split)
            self._graphs.run(key, partial(self._decode, decoder, counts.num_decoded, split))
        if counts.num_prefilled:
            split = self._split(counts)
            key = (place, "prefill", counts.num_prefilled, counts.num_stretches, split)
            self._graphs.run(key, partial(self._prefill, decoder, counts, split))
        if not counts.num_answers:
            return Answers(copied=None, num_answers=0)
        key = (place, "draw", counts.num_sampled)
        self._graphs.run(key, partial(self._draw, decoder, counts.num_sampled))
        self._draw_cut(draws)
        return Answers(copied=self._to_host(self._head.answers_3R), num_answers=counts.num_answers)

    def _split(self, counts: Counts) -> Split:
        if self._is_fixed:
            return Split(most=self._most_splits, fixed=FIXED_SPLIT)
        return split_for(max(1, counts.num_decoded), counts.max_context)

    def _decode(self, decoder: Decoder, num: int, split: Split) -> None:
        tokens = self._tokens(self._staging.decode, num, first_hidden=0)
        way: Way = "fixed" if self._is_fixed else "few" if num <= FEW_ROWS else "many"

        def attend(layer: int, qkv_TD: Tensor, mixed_TD: Tensor) -> None:
            paging, turning = self._paging(layer, tokens), self._turning(decoder, layer)
            if self._is_fixed:
                rotate_and_store(qkv_TD, self._heads, turning, paging)
            decode_attention(
                qkv_TD, mixed_TD, self._heads, turning, paging, self._parts, split, is_fused=not self._is_fixed
            )

        self._trunk.run(decoder, tokens, self._slots.distributions.drawn_S, attend, way)

    def _prefill(self, decoder: Decoder, counts: Counts, split: Split) -> None:
        tokens = self._tokens(self._staging.prefill, counts.num_prefilled, first_hidden=self._limits.max_running)
        stretches_N2 = self._staging.stretches_N2[: counts.num_stretches]

        def attend(layer: int, qkv_TD: Tensor, mixed_TD: Tensor) -> None:
            paging, turning = self._paging(layer, tokens), self._turning(decoder, layer)
            rotate_and_store(qkv_TD, self._heads, turning, paging)
            if self._is_fixed:
                decode_attention(
                    qkv_TD, mixed_TD, self._heads, turning, paging, self._parts, split, is_fused=False
                )
            else:
                prefill_attention(qkv_TD, mixed_TD, self._heads, paging, stretches_N2)

        way: Way = "fixed" if self._is_fixed else "many"
        self._trunk.run(decoder, tokens, self._slots.distributions.drawn_S, attend, way)

    def _draw(self, decoder: Decoder, num: int) -> None:
        rows_R, slots_R, positions_R = (each[:num] for each in self._staging.sample)
        self._head.run(
            decoder.head_VH,
            self._hidden_TH,
            rows_R,
            slots_R,
            positions_R,
            self._slots.distributions,
            "fixed" if self._is_fixed else "many",
        )

    def _draw_cut(self, draws: Sequence[tuple[int, int, int]]) -> None:
        """Draw again where a distribution is cut; rare enough not to be captured."""
        rows = self._slots.cut_rows([slot for _, slot, _ in draws])
        # One by one where bits must not depend on the batch.
        for some in ([row] for row in rows) if self._is_fixed else [rows] if rows else []:
            index = to_device(torch.tensor(some), self._device)
            _, slots, positions = zip(*(draws[row] for row in some), strict=True)
            drawn = self._slots.draw_cut(self._head.logits_RV[index], slots, positions)
            self._head.answers_3R[0].index_copy_(0, index, drawn.tokens_R.int())
            logprobs_2R = torch.stack((drawn.logprobs_R, drawn.cut_logprobs_R))
            self._head.logprobs_2R.index_copy_(1, index, logprobs_2R)

    def _tokens(self, words: tuple[Tensor, Tensor, Tensor], num: int, *, first_hidden: int) -> Tokens:
        tokens_T, slots_T, positions_T = (each[:num] for each in words)
        return Tokens(
            tokens_T=tokens_T,
            slots_T=slots_T,
            positions_T=positions_T,
            hidden_TH=self._hidden_TH[first_hidden : first_hidden + num],
        )

    def _paging(self, layer: int, tokens: Tokens) -> Paging:
        return Paging(
            cache=self._cache.blocks[layer],
            tables_SB=self._tables_SB,
            slots_T=tokens.slots_T,
            positions_T=tokens.positions_T,
        )

    def _turning(self, decoder: Decoder, layer: int) -> Turning:
        attention = decoder.layers[layer].attention
        norms = [getattr(norm, "weight", None) for norm in (attention.q_norm, attention.k_norm)]
        return Turning(cos_PD=self._cos_PD, sin_PD=self._sin_PD, q_norm_D=norms[0], k_norm_D=norms[1])

    # --- memory ---------------------------------------------------------------------------------

    def _move(self, moves: Sequence[Move]) -> None:
        copies: list[tuple[int, int]] = []
        for move in moves:
            if isinstance(move, CopyBlock):
                copies.append((move.source, move.target))
                continue
            # In order: a copy may read what a later move overwrites.
            self._cache.copy(copies)
            copies = []
            match move:
                case Park():
                    self._parked[move.ticket] = self._to_host(self._cache.read(move.blocks, move.num_tokens))
                case Unpark():
                    self._cache.write(move.blocks, self._parked.pop(move.ticket).values)
                case Discard():
                    del self._parked[move.ticket]
        self._cache.copy(copies)

    def _update(self, tables: Sequence[Table]) -> None:
        width = self._tables_SB.shape[1]
        # The last word on a place counts.
        cells = {
            table.slot * width + table.first + offset: block
            for table in tables
            for offset, block in enumerate(table.blocks)
        }
        if cells:
            both = to_device(torch.tensor([list(cells), list(cells.values())]), self._device)
            self._tables_SB.view(-1).index_copy_(0, both[0], both[1].int())

    def _to_host(self, values: Tensor) -> Copied:
        if self._device.type == "cpu":
            return Copied(values=values.clone(), event=None)
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return Copied(values=host, event=event)

    def read_kv(self, blocks: Sequence[int], num_tokens: int) -> Tensor:
        """A copy of the KV of the first tokens, in host memory."""
        return self._to_host(self._cache.read(blocks, num_tokens)).wait()

    def parked_kv(self, ticket: int) -> Tensor:
        """The KV parked under a ticket."""
        return self._parked[ticket].wait()

    def park_kv(self, ticket: int, kv: Tensor) -> None:
        """Park KV that came from elsewhere."""
        self._parked[ticket] = Copied(values=kv, event=None)

    # --- versions -------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare(self, version: int, decoder: Decoder) -> None:
        """Move a version to where graphs look for it."""
        self._places.settle(version, decoder)

    def forget(self, version: int) -> None:
        """Let go of a version."""
        self._places.leave(version)


def _split_rows(config: EngineConfig) -> int:
    """Rows whose context may be split: prefilled tokens attend one by one where bits must not depend on chunks."""
    limits = config.limits
    return limits.step_tokens if config.is_batch_invariant else limits.max_running


def _most_splits(config: EngineConfig) -> int:
    return -(-config.limits.max_positions // FIXED_SPLIT) if config.is_batch_invariant else MAX_SPLITS


def buffer_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Of everything an executor allocates besides the cache."""
    limits, size = config.limits, config.torch_dtype.itemsize
    trunk = limits.step_tokens * Trunk.token_width(model) * size
    head = limits.max_running * Head.row_bytes(model, config.torch_dtype)
    hidden = Staging.num_hidden(limits) * model.hidden_size * size
    parts = _split_rows(config) * _most_splits(config) * model.num_heads * (model.head_dim + 2) * 4
    tables = (limits.max_running + 1) * limits.blocks_for(limits.max_positions) * 4
    angles = limits.max_positions * model.head_dim * 4
    return trunk + head + hidden + parts + tables + angles
