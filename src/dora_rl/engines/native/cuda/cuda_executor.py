"""Carries out plans on a GPU: moves, tables and entrants, then the rows on a lane.

Nothing here waits for the device but `Answers.result` and KV on its way out. Versions with few rows run on
lanes of their own, beside the others; what must not overlap is `plan_order`'s to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import finalize

import torch
from torch import Tensor

from dora_rl.engines.config import EngineConfig
from dora_rl.engines.native.cuda.cache import BlockCache, Copied, arriving, to_device
from dora_rl.engines.native.cuda.kernels.rotary import Heads
from dora_rl.engines.native.cuda.lane import Lane, Shared, lane_bytes
from dora_rl.engines.native.cuda.places import Places
from dora_rl.engines.native.cuda.plan_buffers import Room
from dora_rl.engines.native.cuda.plan_order import PlanOrder
from dora_rl.engines.native.cuda.slots import SLOT_BYTES, SlotSampling, cut_bytes
from dora_rl.engines.native.engine_memory import serving_dtype
from dora_rl.engines.native.scheduling.speculation import MAX_PASS_TOKENS
from dora_rl.engines.native.scheduling.step_plan import (
    CopyBlock,
    DiscardBlocks,
    Launched,
    Move,
    ParkBlocks,
    Plan,
    Sampled,
    Table,
    UnparkBlocks,
)
from dora_rl.model.config import ModelConfig, Rope
from dora_rl.model.decoder import Decoder
from dora_rl.model.rope import Rotary, Rotation

SIDE_ROWS = 128
"""Most rows of a version on a side lane: with more, it fills a GPU by itself."""
MAX_SIDE_LANES = 4
_NOTHING = Sampled(tokens=(), logprobs=(), cut_logprobs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """A step in progress on the device. Implements Launched."""

    copied: Copied | None
    num_answers: int

    def result(self) -> Sampled:
        """Wait for the step to end; returns what it drew."""
        if self.copied is None:
            return _NOTHING
        answers_3R = self.copied.wait()[:, : self.num_answers]
        logprobs, cut_logprobs = answers_3R[1:].view(torch.float32).tolist()
        return Sampled(
            tokens=tuple(answers_3R[0].tolist()), logprobs=tuple(logprobs), cut_logprobs=tuple(cut_logprobs)
        )


class CudaExecutor:
    """The decoder over a paged cache on one device.

    On the CPU it runs under Triton's interpreter, for tests.
    """

    def __init__(self, model: ModelConfig, config: EngineConfig, device: torch.device) -> None:
        self._shared = _shared(model, config, device)
        self._places = Places()
        self._parked: dict[int, Copied] = {}
        self._lanes = [Lane(model, config, room, self._shared) for room in _rooms(config)]
        self._ordering = PlanOrder(self._lanes)
        self._moving_bytes_left = moving_bytes(model, config)
        self._unrehearsed = list(self._lanes[0].passes_to_rehearse(config.limits.max_positions))
        self._synchronize()

    # --- a step ---------------------------------------------------------------------------------

    @property
    def joins_versions(self) -> bool:
        """Whether steps of several versions are launched together: no, their passes overlap as they are."""
        return False

    def launch_together(self, plans: Sequence[Plan]) -> list[Launched]:
        """Launch the steps of several versions one after the other."""
        return [self.launch(plan) for plan in plans]

    @torch.inference_mode()
    def launch(self, plan: Plan) -> Answers:
        """Launch a step without waiting for it."""
        lane = self._lane_for(plan)
        with lane.in_order():
            for other in self._ordering.put(plan, lane):
                lane.wait_for(other)
            self._move(plan.moves)
            self._update(plan.tables)
            if plan.entrants:
                self._shared.slots.enter(plan.entrants)
            copied, num_answers = None, 0
            if plan.version is not None:
                place = self._places.place_of(plan.version)
                copied, num_answers = lane.run(place, self._places.decoder_at(place), plan.rows)
            lane.mark()
        return Answers(copied=copied, num_answers=num_answers)

    def _lane_for(self, plan: Plan) -> Lane:
        """The lane for a version's rows: its side lane where they fit, else the main one."""
        side = self._lanes[1:]
        if plan.version is None or not side:
            return self._lanes[0]
        own = side[self._places.place_of(plan.version) % len(side)]
        return own if own.fits(plan.rows) else self._lanes[0]

    # --- memory ---------------------------------------------------------------------------------

    def _move(self, moves: Sequence[Move]) -> None:
        cache, copies = self._shared.cache, list[tuple[int, int]]()
        for move in moves:
            if isinstance(move, CopyBlock):
                copies.append((move.source, move.target))
                continue
            # In order: a copy may read what a later move overwrites.
            cache.copy(copies)
            copies = []
            match move:
                case ParkBlocks():
                    self._parked[move.ticket] = self._read_to_host(move.blocks, move.num_tokens)
                case UnparkBlocks():
                    cache.write(move.blocks, self._parked.pop(move.ticket).values)
                case DiscardBlocks():
                    del self._parked[move.ticket]
        cache.copy(copies)

    def _update(self, tables: Sequence[Table]) -> None:
        tables_SB = self._shared.tables_SB
        # The last word on a place counts.
        cells = {
            table.slot * tables_SB.shape[1] + table.first + offset: block
            for table in tables
            for offset, block in enumerate(table.blocks)
        }
        if cells:
            both = to_device(torch.tensor([list(cells), list(cells.values())]), tables_SB.device)
            tables_SB.view(-1).index_copy_(0, both[0], both[1].int())

    @torch.inference_mode()
    def read_kv(self, blocks: Sequence[int], num_tokens: int) -> Tensor:
        """A copy of the KV of a sequence's first tokens.

        On the device while there is room set aside, else on the host.
        """
        self._synchronize()
        cache, device = self._shared.cache, self._shared.device
        num_bytes = num_tokens * cache.token_bytes
        if num_bytes > self._moving_bytes_left:
            return self._read_to_host(blocks, num_tokens).wait()
        self._moving_bytes_left -= num_bytes
        kv = cache.room_for(num_tokens, device)
        finalize(kv, self._arrived, num_bytes)
        cache.read(blocks, kv)
        self._synchronize()
        return kv

    def _read_to_host(self, blocks: Sequence[int], num_tokens: int) -> Copied:
        cache = self._shared.cache
        values = cache.room_for(num_tokens, torch.device("cpu"))
        cache.read(blocks, values)
        return arriving(values, self._shared.device)

    def _arrived(self, num_bytes: int) -> None:
        self._moving_bytes_left += num_bytes

    def parked_kv(self, ticket: int) -> Tensor:
        """The KV parked under a ticket."""
        return self._parked[ticket].wait()

    def park_kv(self, ticket: int, kv: Tensor) -> None:
        """Park KV that came from another engine under a ticket."""
        self._parked[ticket] = Copied(values=kv, event=None)

    def _synchronize(self) -> None:
        if self._shared.device.type == "cuda":
            torch.cuda.synchronize(self._shared.device)

    # --- versions -------------------------------------------------------------------------------

    @torch.no_grad()
    def copied(self, decoder: Decoder) -> Decoder:
        """The same weights in a free place that graphs read from, or in new memory."""
        return self._places.copied(decoder)

    @torch.no_grad()
    def prepare(self, version: int, decoder: Decoder) -> None:
        """Move a version's weights to a place that graphs read from."""
        self._places.settle(version, decoder)
        self._synchronize()

    def forget(self, version: int) -> None:
        """Release the place of a version."""
        self._places.leave(version)
        self._ordering.forget(version)

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Launch one kind of decode pass for nobody: its kernels are compiled before rows wait for them."""
        decoder = self._places.any_decoder()
        if self._unrehearsed and decoder is not None:
            self._lanes[0].rehearse(decoder, *self._unrehearsed.pop(0))


def _shared(model: ModelConfig, config: EngineConfig, device: torch.device) -> Shared:
    limits = config.limits
    # A slot more than there are, for rows that only fill a bucket: it lies in scratch.
    num_slots = limits.max_running + 1
    table_size = (num_slots, limits.blocks_for(limits.max_positions))
    return Shared(
        heads=Heads(
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            eps=model.norm_eps,
        ),
        cache=BlockCache(model, limits, serving_dtype(config), device),
        tables_SB=torch.zeros(table_size, dtype=torch.int32, device=device),
        slots=SlotSampling(num_slots, model.vocab_size, device),
        angles={rope: _angles(model, rope, limits.max_positions, device) for rope in _ropes(model)},
        is_fixed=config.is_batch_invariant,
    )


def _ropes(model: ModelConfig) -> set[Rope | None]:
    return {model.rope_of(layer) for layer in range(model.num_layers)}


def _angles(model: ModelConfig, rope: Rope | None, num_positions: int, device: torch.device) -> Rotation:
    """Cosines and sines of all positions; those of no angle where a layer has no rotary positions."""
    if rope is None:
        still_PD = torch.zeros(num_positions, model.head_dim // 2, device=device)
        return Rotation(cos=still_PD + 1.0, sin=still_PD)
    angles = Rotary(rope, model.head_dim).rotation(torch.arange(num_positions, device=device))
    return Rotation(cos=angles.cos.squeeze(1).contiguous(), sin=angles.sin.squeeze(1).contiguous())


def _rooms(config: EngineConfig) -> list[Room]:
    """Sizes of the main lane, and of side lanes where several versions may be resident."""
    limits = config.limits
    num_rows = max(limits.max_running, MAX_PASS_TOKENS) if config.guessed_tokens else limits.max_running
    main = Room(num_rows=num_rows, num_prefilled=limits.step_tokens)
    side = Room(num_rows=min(SIDE_ROWS, num_rows), num_prefilled=0)
    # One for each: two small versions on one lane would wait for each other.
    num_sides = min(MAX_SIDE_LANES, config.max_versions) if config.max_versions > 1 else 0
    return [main, *[side] * num_sides]


def moving_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Bytes set aside for KV that leaves the device: those of one longest request."""
    num_tokens = min(config.limits.max_positions, config.limits.num_blocks * config.limits.block_size)
    return num_tokens * model.num_layers * 2 * model.kv_size * serving_dtype(config).itemsize


def buffer_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Bytes of everything an executor allocates besides the cache."""
    limits = config.limits
    lanes = sum(lane_bytes(model, config, room) for room in _rooms(config))
    num_slots = limits.max_running + 1
    tables = num_slots * limits.blocks_for(limits.max_positions) * 4
    angles = len(_ropes(model)) * limits.max_positions * model.head_dim * 4
    moving = moving_bytes(model, config)
    # One layer of a request on its way in or out exists four times at most: as it came, padded, turned round.
    layer = 4 * (
        moving // model.num_layers + limits.block_size * 2 * model.kv_size * serving_dtype(config).itemsize
    )
    return lanes + tables + num_slots * SLOT_BYTES + angles + moving + layer + cut_bytes(model, config)
