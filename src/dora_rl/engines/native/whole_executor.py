"""Carries out plans for models that keep a state of their own: one sequence after the other.

Their cache cannot be cut into blocks, copied or moved, so blocks are only counted here. A row goes on from
its slot's cache where it is the next token; everything else computes the sequence once more from its
beginning, in one pass, because not every model goes on with several tokens from a state.
Slow, and right for any model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from dora_rl.engines.config import EngineConfig
from dora_rl.engines.native.cpu_executor import NOTHING, Done
from dora_rl.engines.native.sampler import Drawn, Sampler
from dora_rl.engines.native.scheduling.step_plan import Plan, PlannedRow, Sampled
from dora_rl.model.config import ModelSizes
from dora_rl.model.hf.hf_decoder import HfDecoder


@dataclass(slots=True)
class _Slot:
    """The sequence of a slot: its tokens, and the state after the first `num_computed` of them."""

    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    state: Any = None


class WholeExecutor:
    """Transformers' own caches, one a sequence, on the CPU. Implements Device as far as nothing moves."""

    joins_versions = False

    def __init__(self, model: ModelSizes, config: EngineConfig) -> None:
        self._versions: dict[int, HfDecoder] = {}
        self._sampler = Sampler(config.limits.max_running + 1, model.vocab_size)
        self._slots = [_Slot() for _ in range(config.limits.max_running + 1)]

    def launch(self, plan: Plan) -> Done:
        """Carry out a plan; the step is over when this returns."""
        assert not plan.moves, f"KV that cannot move: {plan.moves}"
        self._sampler.enter(plan.entrants)
        if plan.version is None:
            return Done(sampled=NOTHING)
        drawn = [self._advance(self._versions[plan.version], row) for row in plan.rows]
        found = [each for each in drawn if each is not None]
        if not found:
            return Done(sampled=NOTHING)
        tokens, logprobs, cut_logprobs = (
            tuple(torch.cat(column).tolist()) for column in zip(*found, strict=True)
        )
        return Done(sampled=Sampled(tokens=tokens, logprobs=logprobs, cut_logprobs=cut_logprobs))

    def launch_together(self, plans: Sequence[Plan]) -> list[Done]:
        """Carry out plans one after the other."""
        return [self.launch(plan) for plan in plans]

    @torch.inference_mode()
    def _advance(self, decoder: HfDecoder, row: PlannedRow) -> Drawn | None:
        """Take in a row's tokens, and draw the next where that is asked for."""
        slot = self._slots[row.slot]
        if row.start < slot.num_computed or not row.start:
            slot.state, slot.num_computed = None, 0
        # Without tokens, the row is the one drawn last, which is there already.
        slot.tokens = slot.tokens[: row.start + (0 if row.tokens else 1)] + list(row.tokens)
        assert len(slot.tokens) == row.start + row.num_tokens, f"{len(slot.tokens)} tokens for {row}"
        if not row.is_sampled:
            return None
        is_next = slot.state is not None and slot.num_computed == len(slot.tokens) - 1
        state, tokens = (slot.state, slot.tokens[-1:]) if is_next else (None, slot.tokens)
        hidden_TH, slot.state = decoder.with_state(
            torch.tensor(tokens), len(slot.tokens) - len(tokens), state
        )
        slot.num_computed = len(slot.tokens)
        where = torch.tensor([row.slot]), torch.tensor([len(slot.tokens)])
        drawn = self._sampler.draw(decoder.logits(hidden_TH[-1:]), *where)
        slot.tokens.append(int(drawn.tokens_R))
        return drawn

    def copied(self, decoder: HfDecoder) -> HfDecoder:
        """The same weights in new memory."""
        return decoder.copied()

    def prepare(self, version: int, decoder: HfDecoder) -> None:
        """Serve a version."""
        self._versions[version] = decoder

    def forget(self, version: int) -> None:
        """Release a version."""
        del self._versions[version]

    def rehearse(self) -> None:
        """Nothing is compiled here."""

    def read_kv(self, blocks: Sequence[int], num_tokens: int) -> NoReturn:
        """Not asked for: nothing moves."""
        raise AssertionError("a state of its own is not read")

    def parked_kv(self, ticket: int) -> NoReturn:
        """Not asked for: nothing moves."""
        raise AssertionError("a state of its own is not parked")

    def park_kv(self, ticket: int, kv: Tensor) -> NoReturn:
        """Not asked for: nothing moves."""
        raise AssertionError("a state of its own is not parked")
