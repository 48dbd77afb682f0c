"""An engine of a few lines: tokens from a formula of key, position and version, no model and no torch.

It holds one version, moves no KV and holds no turns, but continues from tokens. It passes the contract the
native engine passes, and a run with it keeps the laws; what it draws is no policy's, so nothing is learned.
"""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.decode_clock import DecodeClock
from dora_rl.engines.errors import RequestError, VersionError
from dora_rl.engines.protocol import (
    Abilities,
    EngineDemand,
    EngineLoad,
    EngineOpening,
    EngineSize,
    MovedOut,
    VersionLoad,
    VersionReader,
)
from dora_rl.engines.requests import DrawnTokens, Event, Failed, Finished, Reason, Request, StreamKey

_STEP_S = 0.001
"""A step takes as long as a small model's, so that a run with it has something under way."""


def token_at(key: StreamKey, position: int, version: int, vocab_size: int) -> int:
    """The token that this stream draws at a position under a version."""
    name = f"{key.seed} {key.epoch} {key.row} {key.member} {key.attempt} {key.branch} {position} {version}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") % vocab_size


@dataclass
class _Live:
    request: Request
    tokens: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        return len(self.request.prompt) + len(self.request.continued) + len(self.tokens)


@dataclass(frozen=True)
class _Arriving:
    version: int
    drop: tuple[int, ...]
    is_read: bool = True


class ScriptedEngine:
    """Speaks Engine, in plain Python."""

    abilities = Abilities(max_versions=1, continues=True, keys_draws=True, is_batch_invariant=True)

    def __init__(
        self, limits: Limits, vocab_size: int, stop_tokens: tuple[int, ...], versions: VersionReader
    ) -> None:
        self._limits = limits
        self._vocab_size = vocab_size
        self._stop_tokens = stop_tokens
        self._source = versions
        self._version: int | None = None
        self._live: dict[int, _Live] = {}
        self._events: list[Event] = []
        self._clock = DecodeClock()

    # --- generate ---

    def submit(self, request: Request) -> None:
        try:
            self._check(request)
        except RequestError as error:
            self._events.append(Failed(id=request.id, message=error.message, hint=error.hint))
        else:
            self._live[request.id] = _Live(request)

    def _check(self, request: Request) -> None:
        if request.version != self._version:
            raise RequestError(f"version {request.version} is not resident; {self._version} is")
        if request.holds_turn or request.stopping.stop_strings:
            raise RequestError("this engine holds no turns and reads no text")
        most = len(request.prompt) + len(request.continued) + request.stopping.max_new_tokens
        self._limits.check_length(len(request.prompt) + len(request.continued), most)

    def resume(
        self,
        request_id: int,
        tokens: tuple[int, ...],
        max_new_tokens: int | None = None,
        stop_strings: tuple[str, ...] | None = None,
    ) -> None:
        self._events.append(Failed(id=request_id, message="this engine holds no turns"))

    def abort(self, request_id: int) -> None:
        if request_id in self._live:
            self._end(request_id, "aborted")
        else:
            self._events.append(Failed(id=request_id, message=f"request {request_id} is not here"))

    def request(self, request_id: int) -> Request:
        return self._live[request_id].request

    def is_held(self, request_id: int) -> bool:
        return False

    def drawn(self, request_id: int, first: int = 0) -> DrawnTokens | None:
        live = self._live.get(request_id)
        return None if live is None else self._turn(live).since(first)

    def finished(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def step(self) -> bool:
        running = list(self._live)[: self._limits.max_running]
        for id in running:
            self._draw(id)
        if running:
            time.sleep(_STEP_S)
            self._clock.count(self._version, time.monotonic())
        return bool(running)

    def _draw(self, id: int) -> None:
        live = self._live[id]
        request, stopping = live.request, live.request.stopping
        token = token_at(request.key, live.position, request.version, self._vocab_size)
        live.tokens.append(token)
        stops = self._stop_tokens if stopping.stop_tokens is None else stopping.stop_tokens
        if token in stops and not stopping.is_length_prescribed:
            self._end(id, "stop token")
        elif len(live.tokens) == stopping.max_new_tokens:
            self._end(id, "length")

    def _end(self, id: int, reason: Reason) -> None:
        turn = self._turn(self._live.pop(id))
        self._events.append(
            Finished(
                id=id,
                version=turn.version,
                tokens=turn.tokens,
                logprobs=turn.logprobs,
                cut_logprobs=(),
                reason=reason,
            )
        )

    def _turn(self, live: _Live) -> DrawnTokens:
        return DrawnTokens(
            request=live.request.id,
            version=live.request.version,
            tokens=tuple(live.tokens),
            logprobs=(-math.log(self._vocab_size),) * len(live.tokens),
            cut_logprobs=(),
        )

    def rest(self) -> None:
        self._clock.rest()

    def load(self) -> EngineLoad:
        running = min(len(self._live), self._limits.max_running)
        return EngineLoad(
            num_running=running,
            num_waiting=len(self._live) - running,
            num_held=0,
            kv_tokens=sum(live.position for live in self._live.values()),
            kv_capacity=self._limits.num_blocks * self._limits.block_size,
            num_preempted=0,
            versions=() if self._version is None else (self._version,),
            clock=self._clock.rounds,
            round_s=self._clock.round_s,
        )

    # --- versions ---

    def begin_version(self, version: int, drop: Sequence[int] = ()) -> VersionLoad:
        return _Arriving(version, tuple(drop))

    def finish_version(self, load: VersionLoad) -> None:
        assert isinstance(load, _Arriving), f"{load} was not begun by this engine"
        if load.version == self._version:
            return
        if self._version is not None and self._version not in load.drop:
            raise VersionError(f"version {self._version} is resident, and this engine holds one")
        self._check_unused()
        self._source.fetch(load.version)  # It has no weights, but what was never published it does not serve.
        self._version = load.version

    def drop_version(self, version: int) -> None:
        if version != self._version:
            raise VersionError(f"version {version} is not resident; {self._version} is")
        self._check_unused()
        self._version = None

    def _check_unused(self) -> None:
        if self._live:
            raise VersionError(f"version {self._version} is in use")

    # --- transfer: not declared ---

    def export_file(self, request_id: int, path: Path) -> MovedOut:
        raise RequestError("this engine moves no KV")

    def import_file(self, request_id: int, path: Path) -> DrawnTokens:
        raise RequestError("this engine moves no KV")


class ScriptedKind:
    """A kind of engine that needs no memory."""

    def size(self, demand: EngineDemand) -> EngineSize:
        positions = demand.longest_prompt + demand.max_new_tokens + 1
        slots = demand.recipe.cluster.slots
        limits = Limits(
            num_blocks=slots * positions,
            block_size=1,
            max_running=slots,
            step_tokens=max(slots, positions),
            max_positions=positions,
        )
        config = EngineConfig(limits=limits, dtype=demand.recipe.trainer.serving_dtype, max_versions=1)
        return EngineSize(config=config, versions_bytes=0, kv_bytes=0, workspace_bytes=0, host_kv_bytes=0)

    def open(self, opening: EngineOpening) -> ScriptedEngine:
        vocab_size = int(json.loads((opening.model / "config.json").read_text())["vocab_size"])
        return ScriptedEngine(opening.config.limits, vocab_size, opening.stop_tokens, opening.versions)


SCRIPTED = ScriptedKind()
