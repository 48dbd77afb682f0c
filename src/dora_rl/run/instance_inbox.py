"""Messages of instances become control's inputs, the journal's payloads, and effects.

A word about a request that the instance no longer has is dropped here, and nowhere else.
"""

import time
from collections.abc import Callable
from typing import Any

from dora_rl.control.plane import ControlPlane
from dora_rl.core import inputs as told
from dora_rl.engines.requests import DrawnTokens
from dora_rl.run import messages as say
from dora_rl.run.instances import InstancePhase, InstancePool, InstanceProcess
from dora_rl.run.received import Received, ScoreTrajectory
from dora_rl.run.request_table import PlacedRequest, RequestMoves, RequestTable
from dora_rl.run.worker_deaths import end_if_final
from dora_rl.store.journal_records import Completed, Progress

_Handler = Callable[[InstanceProcess, Any, float, Received], None]


class InstanceInbox:
    """Reads what instances say, and notices who of them is gone."""

    def __init__(
        self, plane: ControlPlane, instances: InstancePool, requests: RequestTable, moves: RequestMoves
    ) -> None:
        self._plane = plane
        self._instances = instances
        self._requests = requests
        self._moves = moves
        self._has_store = False
        """Whether the newest version is in the store."""
        self._handlers: dict[type, _Handler] = {
            say.InstanceReady: self._ready,
            say.Alive: self._alive,
            say.VersionLoaded: self._loaded,
            say.Report: self._reported,
            say.RequestEnded: self._ended,
            say.RequestRefused: self._refused,
            say.RequestExported: self._exported,
            say.RequestImported: self._imported,
            say.DeviceLent: self._lent,
            say.DeviceReturned: self._returned,
        }

    def read(self, at: float) -> Received:
        """Everything the instances said, and then who of them is gone: last words come before a death."""
        received = Received()
        for process in self._instances.processes.values():
            for message in process.handle.receive():
                process.heard_at = time.monotonic()
                if isinstance(message, say.Broken):
                    end_if_final(message)
                    process.last_words = message.message
                else:
                    self._handlers[type(message)](process, message, at, received)
        for lost in self._instances.replace_lost():
            self._moves.forget_instance(lost.number)
            if lost.was_joined:
                received.inputs.append(told.InstanceLost(at=at, instance=lost.number, reason=lost.reason))
        return received

    # --- instances ------------------------------------------------------------------------------

    def serve_store(self) -> None:
        """Note that the store holds the newest version, and let every instance that waits for it load it."""
        self._has_store = True
        for process in self._instances.processes.values():
            if process.phase is InstancePhase.STARTING and process.spec is not None:
                process.enter(InstancePhase.LOADING)
                process.handle.send(say.LoadVersion(version=self._plane.window.newest))

    def _ready(
        self, process: InstanceProcess, message: say.InstanceReady, at: float, received: Received
    ) -> None:
        process.spec = message.spec
        if self._has_store:
            self.serve_store()

    def _loaded(
        self, process: InstanceProcess, message: say.VersionLoaded, at: float, received: Received
    ) -> None:
        number, version, newest = process.number, message.version, self._plane.window.newest
        if process.phase is InstancePhase.JOINED:
            received.inputs.append(told.Loaded(at=at, instance=number, version=version))
            return
        assert process.spec is not None, f"{process.name} loaded a version before it was ready"
        if version != newest:
            # Published meanwhile; and the one it has may be retired before control hears of it.
            process.handle.send(say.LoadVersion(version=newest, drop=(version,)))
            return
        process.enter(InstancePhase.JOINED)
        joined = told.InstanceJoined(at=at, instance=number, spec=process.spec, version=version)
        received.inputs.append(joined)

    def _alive(self, process: InstanceProcess, message: say.Alive, at: float, received: Received) -> None:
        if process.phase is InstancePhase.JOINED:
            received.inputs.append(self._load_report(process, at))

    def _reported(self, process: InstanceProcess, message: say.Report, at: float, received: Received) -> None:
        process.report = message
        if process.phase is not InstancePhase.JOINED:
            return
        for drawn in message.drawn:
            self._grow(process, drawn, received)
        received.inputs.append(self._load_report(process, at))
        if message.is_pressed:
            received.inputs.append(
                told.KvPressure(
                    at=at, instance=process.number, clock=message.clock, kv_tokens=message.kv_tokens
                )
            )

    def _load_report(self, process: InstanceProcess, at: float) -> told.LoadReport:
        report = process.report or say.Report(clock=0.0, kv_tokens=0, step_s=0.0)
        return told.LoadReport(
            at=at,
            instance=process.number,
            clock=report.clock,
            kv_tokens=report.kv_tokens,
            # Before it decoded anything it knows no better than anyone else.
            step_s=report.step_s or self._plane.estimates.step_s,
        )

    def _lent(self, process: InstanceProcess, message: say.DeviceLent, at: float, received: Received) -> None:
        received.inputs.append(told.Lent(at=at, instance=process.number))

    def _returned(
        self, process: InstanceProcess, message: say.DeviceReturned, at: float, received: Received
    ) -> None:
        received.inputs.append(told.Returned(at=at, instance=process.number))

    # --- requests -------------------------------------------------------------------------------

    def _grow(self, process: InstanceProcess, drawn: DrawnTokens, received: Received) -> PlacedRequest | None:
        """Append the tokens a request drew to its trajectory; None if the instance no longer has it."""
        placed = self._requests.find(drawn.request, process.number)
        if placed is None:
            return None
        partial = self._requests.partial[placed.trajectory]
        if drawn.tokens:
            received.payloads.append(
                Progress(
                    trajectory=placed.trajectory,
                    attempt=partial.attempt,
                    start=len(partial.tokens),
                    tokens=drawn.tokens,
                    version=drawn.version,
                    logprobs=drawn.logprobs,
                    cut_logprobs=drawn.cut_logprobs,
                )
            )
            partial.tokens += drawn.tokens
        return placed

    def _ended(
        self, process: InstanceProcess, message: say.RequestEnded, at: float, received: Received
    ) -> None:
        placed = self._grow(process, message.drawn, received)
        if placed is None:
            return
        key = placed.trajectory
        partial = self._requests.partial[key]
        self._moves.forget_request(key)
        received.payloads.append(
            Completed(
                trajectory=key,
                attempt=partial.attempt,
                num_tokens=len(partial.tokens),
                is_truncated=message.is_truncated,
            )
        )
        received.inputs.append(
            told.Ended(
                at=at,
                instance=process.number,
                trajectory=key,
                tokens=len(partial.tokens),
                clock=message.clock,
                kv_tokens=message.kv_tokens,
                truncated=message.is_truncated,
            )
        )
        received.effects.append(ScoreTrajectory(trajectory=key))

    def _refused(
        self, process: InstanceProcess, message: say.RequestRefused, at: float, received: Received
    ) -> None:
        placed = self._requests.find(message.request, process.number)
        if placed is None:
            return
        key, reason = placed.trajectory, message.reason
        self._requests.forget(key)
        if self._moves.forget(key):
            received.inputs.append(told.MoveFailed(at=at, trajectory=key, reason=reason))
        else:
            received.inputs.append(told.Refused(at=at, trajectory=key, reason=reason))

    def _exported(
        self, process: InstanceProcess, message: say.RequestExported, at: float, received: Received
    ) -> None:
        placed = self._grow(process, message.drawn, received)
        if placed is not None:
            received += self._moves.left(placed, message.kv_bytes, at)

    def _imported(
        self, process: InstanceProcess, message: say.RequestImported, at: float, received: Received
    ) -> None:
        placed = self._requests.find(message.request, process.number)
        if placed is not None:
            received.inputs += self._moves.arrived(placed, at)
