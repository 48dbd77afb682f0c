"""Carries out plans on the CPU: moves, passes, draws.

Nothing runs ahead here, so a launched step is over when `launch` returns. What it promises is the order of
plans and, in batch-invariant mode, that the bits of a row do not depend on the rows beside it.

A step's rows are dealt to as many workers as torch has threads, each with one thread: they meet once a step,
where threads inside the products would meet a thousand times, which costs everything on a busy machine.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import torch
from torch import Tensor
from torch.nn import functional

from dora_rl.engines.config import EngineConfig
from dora_rl.engines.errors import EngineError
from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.block_tables import BlockTables
from dora_rl.engines.native.engine_memory import serving_dtype
from dora_rl.engines.native.joint import Joint
from dora_rl.engines.native.packed_linear import Prepared, packed_bytes, prepare
from dora_rl.engines.native.paged import PagedAttention, PagedCache
from dora_rl.engines.native.passes import TILE_ROWS, Pass, sampled_rows, split_rows, tiled_passes, whole_pass
from dora_rl.engines.native.sampler import Drawn, Sampler
from dora_rl.engines.native.scheduling.step_plan import (
    CopyBlock,
    DiscardBlocks,
    Move,
    ParkBlocks,
    Plan,
    PlannedRow,
    Sampled,
    UnparkBlocks,
)
from dora_rl.model.config import ModelConfig
from dora_rl.model.decoder import Decoder

_DRAWN_AT_A_TIME = 2**16
"""Number of logits that exist at a time, unless 64 rows have more."""
SHORT_BYTES = 32 * 2**10
"""Bytes of a layer's keys up to which contexts are sooner copied side by side than attended to one by one."""
_NOTHING = Sampled(tokens=(), logprobs=(), cut_logprobs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A step that is over. Implements Launched."""

    sampled: Sampled

    def result(self) -> Sampled:
        """The tokens that were drawn."""
        return self.sampled


class CpuExecutor:
    """The decoder over a paged cache on the CPU, in this process."""

    def __init__(self, model: ModelConfig, config: EngineConfig) -> None:
        limits = config.limits
        self._versions: dict[int, Prepared] = {}
        self._joint: Joint | None = None
        self._is_batch_invariant = config.is_batch_invariant
        self._cache = PagedCache(model, limits, serving_dtype(config))
        self._short_tokens = SHORT_BYTES // (model.kv_size * serving_dtype(config).itemsize)
        self._parked: dict[int, Tensor] = {}
        """KV parked in host memory, by ticket."""
        self._tables = BlockTables(limits)
        self._vocab_size = model.vocab_size
        self._sampler = Sampler(limits.max_running + 1, model.vocab_size)
        self._last_drawn = torch.zeros(limits.max_running + 1, dtype=torch.int64)
        self._num_workers = torch.get_num_threads()
        self._workers = ThreadPoolExecutor(self._num_workers, initializer=lambda: torch.set_num_threads(1))

    @property
    def joins_versions(self) -> bool:
        """Whether rows of several versions run in one pass: where one worker draws them all, in any shape."""
        is_small = draw_rows(self._vocab_size) >= self._tables.filler_slot
        return is_small and self._num_workers == 1 and not self._is_batch_invariant

    def launch_together(self, plans: Sequence[Plan]) -> list[Done]:
        """Carry out a step of each version, in one pass."""
        if len(plans) == 1:
            return [self.launch(plans[0])]
        for plan in plans:
            self._get_ready(plan)
        return [Done(sampled=sampled) for sampled in self._run_together(plans)]

    def launch(self, plan: Plan) -> Done:
        """Carry out a plan; the step is over when this returns."""
        self._get_ready(plan)
        if plan.version is None:
            return Done(sampled=_NOTHING)
        version = self._versions[plan.version]
        if self._num_workers == 1:
            return Done(sampled=self._run(version, plan.rows))
        parts = split_rows(plan.rows, self._num_workers)
        return Done(sampled=_joined(self._workers.map(lambda rows: self._run(version, rows), parts)))

    def _get_ready(self, plan: Plan) -> None:
        for _, moves in groupby(plan.moves, type):
            alike = list(moves)
            self._cache.copy([(each.source, each.target) for each in alike if isinstance(each, CopyBlock)])
            for move in alike:
                self._move(move)
        self._tables.update(plan.tables)
        self._sampler.enter(plan.entrants)

    def read_kv(self, blocks: Sequence[int], num_tokens: int) -> Tensor:
        """A copy of the KV of a sequence's first tokens."""
        return self._cache.read(blocks, num_tokens)

    def parked_kv(self, ticket: int) -> Tensor:
        """The KV parked under a ticket."""
        return self._parked[ticket]

    def park_kv(self, ticket: int, kv: Tensor) -> None:
        """Park KV that came from another engine under a ticket."""
        self._parked[ticket] = kv.cpu()

    def copied(self, decoder: Decoder) -> Decoder:
        """The same weights in new memory: that of a version that is gone was given back."""
        return deepcopy(decoder)

    def prepare(self, version: int, decoder: Decoder) -> None:
        """Pack the matrices of a version for products of few rows."""
        prepared = prepare(decoder, has_tiles=self._is_batch_invariant)
        if self._is_batch_invariant:
            self._workers.submit(self._check_invariance, prepared).result()
        self._versions[version] = prepared
        self._joint = self._joint or Joint(prepared)
        self._joint.add(version, prepared)

    def forget(self, version: int) -> None:
        """Release what is kept for a version."""
        del self._versions[version]
        if self._joint is not None:
            self._joint.remove(version)

    @torch.inference_mode()
    def _check_invariance(self, version: Prepared) -> None:
        """Refuse to promise what this machine's arithmetic does not keep: that a row's place changes no bit.

        A tile of equal rows must come out as equal rows, through every layer and the head.
        """
        row = PlannedRow(serial=0, slot=self._tables.filler_slot, start=0, tokens=(1,), is_sampled=True)
        (tile,) = tiled_passes([row] * TILE_ROWS, self._last_drawn, self._tables)
        hidden_TH = self._forward(version, tile)
        logits_TV = version.logits(hidden_TH)
        for rows in (hidden_TH, logits_TV, logits_TV.logsumexp(1, keepdim=True)):
            if not rows.equal(rows[:1].expand_as(rows)):
                raise EngineError(
                    "batch_invariant cannot be kept here: products depend on a row's place in its tile",
                    hint="turn batch_invariant off, or try another number of threads",
                )

    def _move(self, move: Move) -> None:
        match move:
            case ParkBlocks():
                self._parked[move.ticket] = self._cache.read(move.blocks, move.num_tokens)
            case UnparkBlocks():
                self._cache.write(move.blocks, self._parked.pop(move.ticket))
            case DiscardBlocks():
                del self._parked[move.ticket]

    @torch.inference_mode()
    def _run_together(self, plans: Sequence[Plan]) -> list[Sampled]:
        """Run one pass over the rows of all plans, and one draw for all of them."""
        assert self._joint is not None, "no version is resident"
        versions = [plan.version for plan in plans if plan.version is not None]
        rows = tuple(row for plan in plans for row in plan.rows)
        self._joint.turn.set(versions, [plan.num_tokens for plan in plans])
        hidden_TH = self._forward(self._joint, self._whole(rows))
        num_drawn = [sum(row.is_sampled for row in plan.rows) for plan in plans]
        self._joint.turn.set(versions, num_drawn)
        return _parted(self._drawn(self._joint, hidden_TH, rows), num_drawn)

    @torch.inference_mode()
    def _run(self, version: Prepared, rows: tuple[PlannedRow, ...]) -> Sampled:
        if self._is_batch_invariant:
            passes = tiled_passes(rows, self._last_drawn, self._tables)
            hidden_TH = torch.cat([self._forward(version, each) for each in passes])
        else:
            hidden_TH = self._forward(version, self._whole(rows))
        return self._drawn(version, hidden_TH, rows)

    def _drawn(self, version: Prepared | Joint, hidden_TH: Tensor, rows: tuple[PlannedRow, ...]) -> Sampled:
        lasts, slots, positions = sampled_rows(rows)
        if not lasts:
            return _NOTHING
        slots_R = torch.tensor(slots)
        drawn = self._draw(version, hidden_TH[torch.tensor(lasts)], slots_R, torch.tensor(positions))
        self._last_drawn[slots_R] = drawn.tokens_R
        tokens, logprobs, cut_logprobs = (tuple(column.tolist()) for column in drawn)
        return Sampled(tokens=tokens, logprobs=logprobs, cut_logprobs=cut_logprobs)

    def _whole(self, rows: tuple[PlannedRow, ...]) -> Pass:
        return whole_pass(rows, self._last_drawn, self._tables, self._short_tokens)

    def _forward(self, version: Prepared | Joint, step: Pass) -> Tensor:
        attention = PagedAttention(self._cache, step.cells_T, step.spans, step.bundles)
        hidden_TH: Tensor = version.decoder(step.tokens_T, step.positions_T, attention)
        return hidden_TH

    def _draw(
        self, version: Prepared | Joint, hidden_RH: Tensor, slots_R: Tensor, positions_R: Tensor
    ) -> Drawn:
        """Draw the tokens of a few rows at a time; in batch-invariant mode always the same number."""
        num_rows = len(hidden_RH)
        tile = draw_rows(self._vocab_size)
        if self._is_batch_invariant:
            tile, filler = TILE_ROWS, (0, -num_rows % TILE_ROWS)
            hidden_RH = functional.pad(hidden_RH, (0, 0, *filler))
            slots_R = functional.pad(slots_R, filler, value=self._tables.filler_slot)
            positions_R = functional.pad(positions_R, filler)
        parts = zip(hidden_RH.split(tile), slots_R.split(tile), positions_R.split(tile), strict=True)
        drawn = [self._sampler.draw(version.logits(hidden), *where) for hidden, *where in parts]
        return Drawn(*(torch.cat(column)[:num_rows] for column in zip(*drawn, strict=True)))


def _parted(sampled: Sampled, counts: Sequence[int]) -> list[Sampled]:
    ends = list(accumulate(counts))
    return [
        Sampled(
            tokens=sampled.tokens[first:end],
            logprobs=sampled.logprobs[first:end],
            cut_logprobs=sampled.cut_logprobs[first:end],
        )
        for first, end in pairwise([0, *ends])
    ]


def draw_rows(vocab_size: int) -> int:
    """How many rows of logits exist at a time."""
    return max(64, _DRAWN_AT_A_TIME // vocab_size)


def _joined(parts: Iterable[Sampled]) -> Sampled:
    columns = zip(*((part.tokens, part.logprobs, part.cut_logprobs) for part in parts), strict=True)
    tokens, logprobs, cut_logprobs = (sum(column, ()) for column in columns)
    return Sampled(tokens=tokens, logprobs=logprobs, cut_logprobs=cut_logprobs)


def cpu_workspace_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Bytes of the largest tensors of a step: logits and noise, and the activations of a layer."""
    logits_and_noise = torch.get_num_threads() * 6 * draw_rows(model.vocab_size) * model.vocab_size * 8
    widths = 4 * max(model.intermediate_size, model.q_size) + 4 * model.hidden_size
    return logits_and_noise + config.limits.step_tokens * widths * 4


CPU = Backend(
    torch_device="cpu",
    make_device=CpuExecutor,
    prepared_bytes=lambda model, config: packed_bytes(model, serving_dtype(config)),
    workspace_bytes=cpu_workspace_bytes,
)
