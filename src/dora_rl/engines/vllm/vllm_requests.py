"""vLLM's engine as a handful of calls: add, abort, step, and what a step and the engine held.

Knows vLLM's requests and none of ours beyond their numbers. Everything is called from one thread, and a step
is over when it returns.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor
from vllm.sampling_params import RequestOutputKind

from dora_rl.engines.errors import RequestError
from dora_rl.engines.native.scheduling.sequence import Sequence as Turn
from dora_rl.engines.streams import Words
from dora_rl.engines.vllm.keyed_draws import draw_params
from dora_rl.engines.vllm.kv_moves import KvMoves


class Answer(NamedTuple):
    """What a step drew for one turn."""

    serial: int
    tokens: list[int]
    logprobs: list[tuple[float, float | None]]
    """Of each token, over the full vocabulary and, where the distribution is cut, after the cut."""


class StepCounts(NamedTuple):
    """What a step computed."""

    num_decoded: int
    num_computed: int
    num_recomputed: int


class HeldCounts(NamedTuple):
    """What vLLM holds now."""

    num_running: int
    num_blocks: int
    num_preempted: int
    num_reused: int


class VllmRequests:
    """The requests of one LLMEngine."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._core = library.engine_core.engine_core
        self._scheduler = self._core.scheduler
        self._moves: KvMoves | None = self._scheduler.connector
        self._names: dict[int, str] = {}
        """vLLM's own names of requests, which it makes of ours."""
        self._lost: set[str] = set()
        """Requests whose KV existed once, here or elsewhere: computing it is computing it again."""
        self._num_preempted = self._num_reused = 0

    def add(self, turn: Turn, stream: Words, kv: Tensor | None = None) -> None:
        """Ask for the tokens of a turn, whose first tokens' KV may be at hand."""
        request = turn.request
        prompt = {"prompt_token_ids": list(turn.tokens), "cache_salt": f"version {request.version}"}
        params = draw_params(
            request.sampling, stream, turn.max_tokens - len(turn.tokens), RequestOutputKind.DELTA
        )
        name = self._library.add_request(str(turn.serial), prompt, params, priority=request.deadline)
        self._names[turn.serial] = name
        if kv is not None:
            # Nothing is admitted before the next step.
            self.moves.bring(name, kv, turn.num_computed)
        elif request.continued:
            self._lost.add(name)

    def abort(self, turn: Turn) -> None:
        """Stop a turn, unless its last token was the last that vLLM was asked for."""
        if turn.serial in self._names:
            self._library.abort_request([self._forgotten(turn.serial)], internal=True)

    @property
    def moves(self) -> KvMoves:
        """KV on its way; a RequestError where it stays where it is."""
        if self._moves is None:
            raise RequestError("this engine moves no KV")
        return self._moves

    def read_kv(self, turn: Turn) -> tuple[Tensor | None, int]:
        """The KV of a turn and the tokens it is of; none while the turn waits for its first step."""
        moves, name = self.moves, self._names[turn.serial]
        num_tokens = self._scheduler.requests[name].num_computed_tokens
        if not num_tokens:
            return None, 0
        (blocks,) = self._scheduler.kv_cache_manager.get_block_ids(name)
        return moves.read(blocks, num_tokens), num_tokens

    @property
    def is_ahead(self) -> bool:
        """Whether a step was launched whose answers are not known."""
        return bool(self._core.batch_queue)

    def step(self) -> list[Answer]:
        """Run one step; what it drew, for all turns that drew something."""
        answers = []
        for output in self._library.step():
            (completion,) = output.outputs
            serial = int(output.request_id)
            if output.finished:
                self._forgotten(serial)
            tokens = list(completion.token_ids)
            if tokens:
                found = zip(tokens, completion.logprobs, strict=True)
                answers.append(Answer(serial, tokens, [_logprobs(token, each) for token, each in found]))
        return answers

    def _forgotten(self, serial: int) -> str:
        name = self._names.pop(serial)
        self._lost.discard(name)
        return name

    def last_step(self) -> StepCounts:
        """What the last step computed: a row of one token decoded."""
        plan, self._scheduler.plan = self._scheduler.plan, None
        if plan is None:
            return StepCounts(0, 0, 0)
        preempted = plan.preempted_req_ids or ()
        self._lost.update(preempted)
        self._num_preempted += len(preempted)
        self._num_reused += sum(each.num_computed_tokens for each in plan.scheduled_new_reqs)
        prefilled = {name: number for name, number in plan.num_scheduled_tokens.items() if number > 1}
        return StepCounts(
            num_decoded=len(plan.num_scheduled_tokens) - len(prefilled),
            num_computed=sum(prefilled.values()),
            num_recomputed=sum(number for name, number in prefilled.items() if name in self._lost),
        )

    def counts(self) -> HeldCounts:
        """What vLLM holds now."""
        scheduler = self._scheduler
        pool = scheduler.kv_cache_manager.block_pool
        used = round(pool.get_usage() * (pool.num_gpu_blocks - 1))
        num_reused = self._num_reused - (self._moves.num_loaded if self._moves else 0)
        return HeldCounts(len(scheduler.running), used, self._num_preempted, num_reused)

    def forget_prefixes(self) -> None:
        """Forget the KV of finished requests, which is of the weights they ran with."""
        assert self._library.reset_prefix_cache(), "KV of an unfinished request is in use"


def _logprobs(token: int, found: Mapping[int, Any]) -> tuple[float, float | None]:
    """The log-probability of a token, and that after the cut, which comes under another token's name."""
    beside = [each.logprob for other, each in found.items() if other != token]
    return found[token].logprob, beside[0] if beside else None
