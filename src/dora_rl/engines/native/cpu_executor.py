"""Carries out plans on the CPU: moves, passes, draws.

Nothing runs ahead here, so a launched step is over when `launch` returns. What it promises is the order of
plans and, in batch-invariant mode, that the bits of a row do not depend on the rows beside it.

A step's rows are dealt to as many workers as torch has threads, each with one thread: they meet once a step,
where threads inside the products would meet a thousand times, which costs everything on a busy machine.
"""

from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, pairwise

import torch
from torch import Tensor
from torch.nn import functional

from dora_rl.core.routes import type_code
from dora_rl.engines.config import EngineConfig
from dora_rl.engines.errors import EngineError
from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.block_tables import BlockTables
from dora_rl.engines.native.engine_memory import serving_dtype
from dora_rl.engines.native.joint import Joint
from dora_rl.engines.native.packed_linear import Prepared, packed_bytes, prepare
from dora_rl.engines.native.paged import PagedAttention, PagedCache
from dora_rl.engines.native.paged_rules import PagedRules
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
from dora_rl.model.config import ModelConfig, ModelSizes
from dora_rl.model.hf.hf_decoder import HfDecoder
from dora_rl.model.language_model import LanguageModel
from dora_rl.model.router_notes import RouterNotes

_DRAWN_AT_A_TIME = 2**16
"""Number of logits that exist at a time, unless 64 rows have more."""
SHORT_BYTES = 32 * 2**10
"""Bytes of a layer's keys up to which contexts are sooner copied side by side than attended to one by one."""
NOTHING = Sampled(tokens=(), logprobs=(), cut_logprobs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A step that is over. Implements Launched."""

    sampled: Sampled

    def result(self) -> Sampled:
        """The tokens that were drawn."""
        return self.sampled


class CpuExecutor:
    """The decoder over a paged cache on the CPU, in this process."""

    def __init__(self, model: ModelSizes, config: EngineConfig) -> None:
        limits = config.limits
        self._versions: dict[int, Prepared] = {}
        self._joint: Joint | None = None
        self._can_join = isinstance(model, ModelConfig)
        self._is_batch_invariant = config.is_batch_invariant
        self._experts = model.experts if config.records_experts else None
        """The experts whose choices are recorded, if any."""
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
        is_alone = self._is_batch_invariant or self._experts is not None or not self._can_join
        return is_small and self._num_workers == 1 and not is_alone

    def launch(self, plan: Plan) -> Done:
        """Carry out a plan; the step is over when this returns."""
        return self.launch_together([plan])[0]

    def launch_together(self, plans: Sequence[Plan]) -> list[Done]:
        """Carry out a step of each version, in one pass; they are over when this returns."""
        for plan in plans:
            for _, moves in groupby(plan.moves, type):
                self._move(list(moves))
            self._tables.update(plan.tables)
            self._sampler.enter(plan.entrants)
        versions = [plan.version for plan in plans if plan.version is not None]
        if not versions:
            return [Done(sampled=NOTHING) for _ in plans]
        if len(plans) > 1 or self._num_workers == 1:
            sampled = self._run(versions, [plan.rows for plan in plans])
        else:
            parts = split_rows(plans[0].rows, self._num_workers)
            sampled = _joined(self._workers.map(lambda rows: self._run(versions, [rows]), parts))

        ends = accumulate(sum(row.num_draws for row in plan.rows) for plan in plans)
        return [
            Done(
                sampled=Sampled(
                    tokens=sampled.tokens[first:end],
                    logprobs=sampled.logprobs[first:end],
                    cut_logprobs=sampled.cut_logprobs[first:end],
                    experts=sampled.experts[first:end],
                )
            )
            for first, end in pairwise([0, *ends])
        ]

    @torch.inference_mode()
    def _run(self, versions: Sequence[int], runs: Sequence[Sequence[PlannedRow]]) -> Sampled:
        """Run one pass over the rows of each version, and one draw for all of them."""
        rows = [row for run in runs for row in run]
        served: Prepared | Joint = self._versions[versions[0]]
        if len(versions) > 1:
            assert self._joint is not None, "no version is resident"
            served = self._joint
            served.pass_rows.set(versions, [sum(row.num_tokens for row in run) for run in runs])
        if self._is_batch_invariant:
            tiles = tiled_passes(rows, self._last_drawn, self._tables)
            passes = list(map(partial(self._forward, served), tiles))
        else:
            whole = whole_pass(rows, self._last_drawn, self._tables, self._short_tokens)
            passes = [self._forward(served, whole)]
        hidden_TH = torch.cat([hidden for hidden, _ in passes]) if len(passes) > 1 else passes[0][0]

        lasts, slots, positions = sampled_rows(rows)
        if not lasts:
            return NOTHING
        if isinstance(served, Joint):
            served.pass_rows.set(versions, [sum(row.num_draws for row in run) for run in runs])
        num_drawn, tile_rows = len(lasts), draw_rows(self._vocab_size)
        hidden_RH = hidden_TH[torch.tensor(lasts)]
        slots_R, positions_R = torch.tensor(slots), torch.tensor(positions)
        if self._is_batch_invariant:
            # Always the same number of rows at a time.
            tile_rows, filler = TILE_ROWS, (0, -num_drawn % TILE_ROWS)
            hidden_RH = functional.pad(hidden_RH, (0, 0, *filler))
            slots_R = functional.pad(slots_R, filler, value=self._tables.filler_slot)
            positions_R = functional.pad(positions_R, filler)
        parts = zip(*(each.split(tile_rows) for each in (hidden_RH, slots_R, positions_R)), strict=True)
        tiles_drawn = [self._sampler.draw(served.logits(hidden), *where) for hidden, *where in parts]
        drawn = Drawn(*(torch.cat(column)[:num_drawn] for column in zip(*tiles_drawn, strict=True)))
        self._last_drawn[slots_R[:num_drawn]] = drawn.tokens_R
        tokens, logprobs, cut_logprobs = (tuple(column.tolist()) for column in drawn)
        experts = () if self._experts is None else routes(passes, lasts, self._experts.num_experts)
        return Sampled(tokens=tokens, logprobs=logprobs, cut_logprobs=cut_logprobs, experts=experts)

    def _forward(self, version: Prepared | Joint, step: Pass) -> tuple[Tensor, RouterNotes | None]:
        """The hidden states of a pass, and what its routers chose where that is recorded."""
        decoder, where = version.decoder, (self._cache, step.cells_T, step.spans, step.bundles)
        if isinstance(decoder, HfDecoder):
            return decoder(step.tokens_T, step.positions_T, PagedRules(*where)), None
        routing = None if self._experts is None else RouterNotes()
        hidden_TH: Tensor = decoder(step.tokens_T, step.positions_T, PagedAttention(*where), routing)
        return hidden_TH, routing

    def _move(self, moves: Sequence[Move]) -> None:
        """Carry out moves of one kind: copies all at once."""
        self._cache.copy([(each.source, each.target) for each in moves if isinstance(each, CopyBlock)])
        for move in moves:
            match move:
                case ParkBlocks():
                    self._parked[move.ticket] = self._cache.read(move.blocks, move.num_tokens)
                case UnparkBlocks():
                    self._cache.write(move.blocks, self._parked.pop(move.ticket))
                case DiscardBlocks():
                    del self._parked[move.ticket]

    # --- KV and versions ------------------------------------------------------------------------

    def read_kv(self, blocks: Sequence[int], num_tokens: int) -> Tensor:
        """A copy of the KV of a sequence's first tokens."""
        return self._cache.read(blocks, num_tokens)

    def parked_kv(self, ticket: int) -> Tensor:
        """The KV parked under a ticket."""
        return self._parked[ticket]

    def park_kv(self, ticket: int, kv: Tensor) -> None:
        """Park KV that came from another engine under a ticket."""
        self._parked[ticket] = kv.cpu()

    def copied(self, decoder: LanguageModel) -> LanguageModel:
        """The same weights in new memory: that of a version that is gone was given back."""
        return deepcopy(decoder)

    def prepare(self, version: int, decoder: LanguageModel) -> None:
        """Pack the matrices of a version for products of few rows."""
        prepared = prepare(decoder, has_tiles=self._is_batch_invariant)
        if self._is_batch_invariant:
            self._workers.submit(self._check_invariance, prepared).result()
        self._versions[version] = prepared
        if self._can_join:
            self._joint = self._joint or Joint(prepared)
            self._joint.add(version, prepared)

    def forget(self, version: int) -> None:
        """Release what is kept for a version."""
        del self._versions[version]
        if self._joint is not None:
            self._joint.remove(version)

    def rehearse(self) -> None:
        """Nothing is compiled on a CPU."""

    @torch.inference_mode()
    def _check_invariance(self, version: Prepared) -> None:
        """Refuse to promise what this machine's arithmetic does not keep: that a row's place changes no bit.

        A tile of equal rows must come out as equal rows, through every layer and the head.
        """
        row = PlannedRow(serial=0, slot=self._tables.filler_slot, start=0, tokens=(1,), is_sampled=True)
        (tile,) = tiled_passes([row] * TILE_ROWS, self._last_drawn, self._tables)
        hidden_TH, _ = self._forward(version, tile)
        logits_TV = version.logits(hidden_TH)
        for rows in (hidden_TH, logits_TV, logits_TV.logsumexp(1, keepdim=True)):
            if not rows.equal(rows[:1].expand_as(rows)):
                raise EngineError(
                    "batch_invariant cannot be kept here: products depend on a row's place in its tile",
                    hint="turn batch_invariant off, or try another number of threads",
                )


def routes(
    passes: Iterable[tuple[Tensor, RouterNotes | None]], lasts: Sequence[int], num_experts: int
) -> tuple[bytes, ...]:
    """The experts behind each draw, which follows the token at a place in `lasts`."""
    chosen = [torch.stack(list(own.chosen.values()), dim=1) for _, own in passes if own is not None]
    numbers_RLA = torch.cat(chosen)[torch.tensor(lasts)].flatten(1).tolist()
    code = type_code(num_experts)
    return tuple(array(code, own).tobytes() for own in numbers_RLA)


def draw_rows(vocab_size: int) -> int:
    """How many rows of logits exist at a time."""
    return max(64, _DRAWN_AT_A_TIME // vocab_size)


def _joined(parts: Iterable[Sampled]) -> Sampled:
    columns = zip(
        *((part.tokens, part.logprobs, part.cut_logprobs, part.experts) for part in parts), strict=True
    )
    tokens, logprobs, cut_logprobs, experts = (sum(column, ()) for column in columns)
    return Sampled(tokens=tokens, logprobs=logprobs, cut_logprobs=cut_logprobs, experts=experts)


def cpu_workspace_bytes(model: ModelSizes, config: EngineConfig) -> int:
    """Bytes of the largest tensors of a step: logits and noise, and the activations of a layer."""
    logits_and_noise = torch.get_num_threads() * 6 * draw_rows(model.vocab_size) * model.vocab_size * 8
    widths = 4 * max(model.intermediate_size, model.q_size) + 4 * model.hidden_size
    return logits_and_noise + config.limits.step_tokens * widths * 4


CPU = Backend(
    torch_device="cpu",
    make_device=CpuExecutor,
    prepared_bytes=lambda model, config: packed_bytes(model, serving_dtype(config)),
    workspace_bytes=cpu_workspace_bytes,
    check_model=lambda model, config: None,
)
