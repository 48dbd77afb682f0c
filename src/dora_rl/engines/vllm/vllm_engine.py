"""The vLLM engine: an Engine over vLLM's own, which schedules, computes and keeps KV.

It holds one version. A sequence here is what vLLM was asked, and what it answered; when a turn is over is
decided here, by the rules of the native engine, so that turns end alike. vLLM's names of requests are the
serial numbers of turns: what still comes of one that is over is nobody's. A request that cannot be served
becomes a Failed event and touches no other.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dora_rl.core.errors import DoraError
from dora_rl.engines.config import EngineConfig
from dora_rl.engines.decode_clock import DecodeClock
from dora_rl.engines.errors import RequestError, VersionError
from dora_rl.engines.native.intake import Intake
from dora_rl.engines.native.scheduling.sequence import Sequence as Turn
from dora_rl.engines.native.scheduling.step_times import StepTimes
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.native.transfer import Exported, header_of, read_exported, sequence_of, write_exported
from dora_rl.engines.protocol import Abilities, EngineLoad, MovedOut, VersionLoad, VersionReader
from dora_rl.engines.requests import DrawnTokens, Event, Failed, Finished, Reason, Request
from dora_rl.engines.streams import stream_of
from dora_rl.engines.vllm.parameters import Tensors, VllmParameters
from dora_rl.engines.vllm.vllm_requests import VllmRequests
from dora_rl.model.config import ModelConfig
from dora_rl.model.delta import Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmLoad:
    """A version that is being read beside the engine. Implements VersionLoad."""

    version: int
    drop: tuple[int, ...]
    whole: Future[Tensors] | None = None
    delta: Future[Delta | None] | None = None

    @property
    def is_read(self) -> bool:
        """Whether the version is read, so that the engine need not wait for it."""
        return all(each is None or each.done() for each in (self.whole, self.delta))


class VllmEngine:
    """Generates with vLLM, in this process. Implements Engine."""

    def __init__(
        self,
        library: Any,
        model: ModelConfig,
        config: EngineConfig,
        stops: Stops,
        *,
        source: VersionReader,
        abilities: Abilities,
    ) -> None:
        self.abilities = abilities
        self._requests = VllmRequests(library)
        self._parameters = VllmParameters(library, model)
        self._limits = config.limits
        self._stops = stops
        self._versions: set[int] = set()
        self._intake = Intake(model, config, self._versions, stops)
        self._source = source
        self._turns: dict[int, Turn] = {}
        self._by_serial: dict[int, Turn] = {}
        self._next_serial = 0
        self._events: list[Event] = []
        self._clock = DecodeClock()
        self._times = StepTimes(config.limits.block_size)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="versions")

    # --- generate -------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request; what is wrong with it becomes a Failed event."""
        try:
            self._begin(request)
        except RequestError as error:
            self._fail(request.id, error)

    def _begin(self, request: Request) -> None:
        if request.holds_turn:
            raise RequestError("this engine holds no turns")
        tokens = (*request.prompt, *request.continued)
        max_tokens = min(len(tokens) + request.stopping.max_new_tokens, self._limits.max_positions)
        self._check(request, tokens, max_tokens)
        serial = self._new_serial()
        turn = Turn(
            request=request,
            priority=(request.deadline, serial),
            serial=serial,
            tokens=list(tokens),
            max_tokens=max_tokens,
            turn_start=len(tokens),
        )
        self._add(turn)

    def _check(self, request: Request, tokens: tuple[int, ...], max_tokens: int) -> None:
        """Refuse what this engine cannot serve, before anything is changed."""
        self._intake.check(request)
        self._intake.check_tokens(tokens)
        if request.id in self._turns:
            raise RequestError(f"request {request.id} is here already")
        if not request.prompt:
            raise RequestError("the prompt is empty")
        self._limits.check_length(len(tokens), max_tokens)

    def _new_serial(self) -> int:
        self._next_serial += 1
        return self._next_serial

    def _add(self, turn: Turn, kv: Tensor | None = None) -> None:
        self._stops.equip(turn)
        self._requests.add(turn, stream_of(turn.request.key), kv)
        self._turns[turn.request.id] = self._by_serial[turn.serial] = turn

    def _find(self, request_id: int) -> Turn:
        if request_id not in self._turns:
            raise RequestError(f"request {request_id} is not here")
        return self._turns[request_id]

    def resume(
        self,
        request_id: int,
        tokens: tuple[int, ...],
        max_new_tokens: int | None = None,
        stop_strings: tuple[str, ...] | None = None,
    ) -> None:
        """Answer that no turn is held here."""
        self._events.append(Failed(id=request_id, message="this engine holds no turns"))

    def abort(self, request_id: int) -> None:
        """End a request; what it generated so far comes as a Finished event."""
        try:
            turn = self._find(request_id)
        except RequestError as error:
            self._fail(request_id, error)
            return
        self._requests.abort(turn)
        self._end(turn, "aborted")

    def request(self, request_id: int) -> Request:
        """A live request as it would be submitted to begin the turn it is in."""
        return self._find(request_id).request

    def is_held(self, request_id: int) -> bool:
        """Whether a request is here, between turns: never."""
        return False

    def drawn(self, request_id: int, first: int = 0) -> DrawnTokens | None:
        """What a live request drew in this turn from its `first` token on; None if it is not here."""
        turn = self._turns.get(request_id)
        if turn is None:
            return None
        return DrawnTokens(
            request=request_id,
            version=turn.request.version,
            tokens=tuple(turn.tokens[turn.turn_start + first :]),
            logprobs=tuple(turn.logprobs[first:]),
            cut_logprobs=tuple(turn.cut_logprobs[first:]),
        )

    def finished(self) -> list[Event]:
        """Events of turns that ended since the last call."""
        events, self._events = self._events, []
        return events

    def step(self) -> bool:
        """Run one step of vLLM; False when there was nothing to do."""
        if not self._turns:
            return False
        self._advance()
        return True

    def _advance(self) -> None:
        began = time.monotonic()
        answers = self._requests.step()
        for answer in answers:
            turn = self._by_serial.get(answer.serial)
            if turn is not None:
                self._take_in(turn, answer.tokens, answer.logprobs)
        if answers:
            (version,) = self._versions
            self._clock.count(version, time.monotonic())
        self._times.count_tokens(**self._requests.last_step()._asdict(), step_s=time.monotonic() - began)

    def _settle(self) -> None:
        """Take in all answers, so that no step is under way."""
        while self._requests.is_ahead:
            self._advance()

    def _take_in(
        self, turn: Turn, tokens: Sequence[int], logprobs: Sequence[tuple[float, float | None]]
    ) -> None:
        """Append what was drawn, one token at a step, and end the turn where it is over."""
        for token, (logprob, cut_logprob) in zip(tokens, logprobs, strict=True):
            turn.tokens.append(token)
            turn.logprobs.append(logprob)
            if cut_logprob is not None:
                turn.cut_logprobs.append(cut_logprob)
            if reason := self._stops.reason(turn):
                self._requests.abort(turn)
                self._end(turn, reason)
                return

    def _end(self, turn: Turn, reason: Reason) -> None:
        del self._turns[turn.request.id], self._by_serial[turn.serial]
        self._events.append(
            Finished(
                id=turn.request.id,
                version=turn.request.version,
                tokens=tuple(turn.tokens[turn.turn_start :]),
                logprobs=tuple(turn.logprobs),
                cut_logprobs=tuple(turn.cut_logprobs),
                reason=reason,
            )
        )

    def rest(self) -> None:
        """Note that nothing will be generated for a while: that time is no part of a round."""
        self._clock.rest()

    def load(self) -> EngineLoad:
        """The requests, KV and versions that the engine carries now, and how fast it decodes."""
        counts, limits = self._requests.counts(), self._limits
        return EngineLoad(
            num_running=counts.num_running,
            num_waiting=len(self._turns) - counts.num_running,
            num_held=0,
            kv_tokens=counts.num_blocks * limits.block_size,
            kv_capacity=limits.num_blocks * limits.block_size,
            num_preempted=counts.num_preempted,
            versions=tuple(self._versions),
            clock=self._clock.rounds,
            round_s=self._clock.round_s,
            num_reused=counts.num_reused,
            **self._times.figures,
        )

    def _fail(self, request_id: int, error: DoraError) -> None:
        self._events.append(Failed(id=request_id, message=error.message, hint=error.hint))

    # --- versions -------------------------------------------------------------------------------

    def begin_version(self, version: int, drop: Sequence[int] = ()) -> VersionLoad:
        """Begin to read a version that becomes resident in place of the one to drop."""
        source, asked = self._source, tuple(drop)
        tensors, resident = self._parameters.in_place, max(self._versions, default=None)
        if version in self._versions:
            return VllmLoad(version=version, drop=asked)
        if resident is not None and resident < version and tensors is not None:
            delta = self._reader.submit(source.fetch_delta, version, resident, tensors)
            return VllmLoad(version=version, drop=asked, delta=delta)
        return VllmLoad(version=version, drop=asked, whole=self._reader.submit(source.fetch, version))

    def finish_version(self, load: VersionLoad) -> None:
        """Wait until the version is read and put it in the place of the one to drop."""
        assert isinstance(load, VllmLoad), f"{load} was not begun by this engine"
        if load.version in self._versions:
            return
        kept = self._versions - set(load.drop)
        if kept:
            raise VersionError(f"version {kept.pop()} is resident, and this engine holds one")
        # Before anything is changed: what cannot be read leaves everything as it was.
        delta = load.delta.result() if load.delta is not None else None
        whole = load.whole.result() if load.whole is not None else None
        self._check_unused()
        self._settle()
        self._requests.forget_prefixes()
        if delta is not None:
            self._parameters.change(delta)
        else:
            self._parameters.reload(load.version, whole or self._source.fetch(load.version))
        self._versions.clear()
        self._versions.add(load.version)

    def drop_version(self, version: int) -> None:
        """Serve the version no longer; a VersionError while a request uses it."""
        if version not in self._versions:
            raise VersionError(f"version {version} is not resident; {list(self._versions)} are")
        self._check_unused()
        self._settle()
        self._requests.forget_prefixes()
        self._versions.clear()

    def _check_unused(self) -> None:
        if self._turns:
            (version,) = self._versions
            raise VersionError(f"version {version} is in use", hint="wait for its requests, or move them")

    # --- transfer -------------------------------------------------------------------------------

    def export_file(self, request_id: int, path: Path) -> MovedOut:
        """Take a request out of this engine and write it to a file, with its KV."""
        self._settle()
        turn = self._find(request_id)
        kv, turn.num_computed = self._requests.read_kv(turn)
        turn.num_tokens = len(turn.tokens)
        exported = Exported(header=header_of(turn), kv=kv)
        self._requests.abort(turn)
        del self._turns[request_id], self._by_serial[turn.serial]
        return MovedOut(drawn=exported.header.drawn, kv_bytes=write_exported(exported, path))

    def import_file(self, request_id: int, path: Path) -> DrawnTokens:
        """Let a request from a file go on under a new number; returns the tokens of its turn so far."""
        exported = read_exported(path, request_id)
        header, kv = exported.header, exported.kv
        self._check(header.request, header.tokens, header.max_tokens)
        if header.is_held:
            raise RequestError("this engine holds no turns")
        if kv is not None:
            self._requests.moves.check(kv, header.num_computed)
            waiting = self._requests.moves.num_waiting_blocks + self._limits.blocks_for(header.num_computed)
            if waiting > self._limits.num_host_blocks:
                raise RequestError(f"{waiting} KV blocks would wait; {self._limits.num_host_blocks} may")
        serial = self._new_serial()
        priority = (header.request.deadline, serial)
        self._add(sequence_of(header, priority=priority, serial=serial, ticket=None if kv is None else 0), kv)
        return header.drawn
