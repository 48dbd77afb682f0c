"""Messages of instances become control's inputs, the journal's payloads, and effects.

A word about a request that the instance no longer has is dropped here, and nowhere else.
"""

import time

from dora_rl.control.plane import ControlPlane
from dora_rl.core import inputs as told
from dora_rl.core.errors import UserError
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.engines.requests import DrawnTokens
from dora_rl.run import messages as say
from dora_rl.run.episodes.host import EpisodeHost
from dora_rl.run.instances import InstancePhase, InstancePool, InstanceProcess
from dora_rl.run.received import AnswerRole, Received, ScoreTrajectory
from dora_rl.run.request_table import PlacedRequest, RequestMoves, RequestTable
from dora_rl.run.worker_deaths import end_if_final
from dora_rl.store.journal_records import Progress


class InstanceInbox:
    """Reads what instances say, and notices who of them is gone."""

    def __init__(
        self,
        plane: ControlPlane,
        instances: InstancePool,
        requests: RequestTable,
        moves: RequestMoves,
        episodes: EpisodeHost | None = None,
    ) -> None:
        self._plane = plane
        self._instances = instances
        self._requests = requests
        self._moves = moves
        self._episodes = episodes
        self._has_store = False
        """Whether the newest version is in the store."""

    def read(self, at: float) -> Received:
        """Everything the instances said, and then who of them is gone: last words come before a death."""
        received, newest = Received(), self._plane.window.newest
        processes = self._instances.processes.values()
        for process, message in [(each, word) for each in processes for word in each.handle.receive()]:
            process.heard_at = time.monotonic()
            has_joined = process.phase is InstancePhase.JOINED
            match message:
                case say.Broken():
                    end_if_final(message)
                    process.last_words = message.message
                case say.InstanceReady():
                    self._instances.opened(process, self._checked(message.spec))
                    if self._has_store:
                        self.serve_store()
                case say.VersionLoaded(version=version) if has_joined:
                    received.inputs.append(told.Loaded(at=at, instance=process.number, version=version))
                case say.VersionLoaded(version=version) if version != newest:
                    # Published meanwhile; and the one it has may be retired before control hears of it.
                    process.handle.send(say.LoadVersion(version=newest, drop=(version,)))
                case say.VersionLoaded(version=version):
                    assert process.spec is not None, f"{process.name} loaded a version before it was ready"
                    process.enter(InstancePhase.JOINED)
                    received.inputs.append(
                        told.InstanceJoined(
                            at=at, instance=process.number, spec=process.spec, version=version
                        )
                    )
                case say.Alive():
                    if has_joined:
                        received.inputs.append(self._load_report(process, at))
                case say.Report():
                    self._reported(process, message, at, received)
                case say.RequestEnded():
                    self._ended(process, message, at, received)
                case say.RequestRefused():
                    self._refused(process, message, at, received)
                case say.RequestExported():
                    if (placed := self._grow(process, message.drawn, received)) is not None:
                        received += self._moves.left(placed, message.kv_bytes, at)
                case say.RequestImported():
                    if (placed := self._requests.find(message.request, process.number)) is not None:
                        received.inputs += self._moves.arrived(placed, at)
                case say.DeviceLent():
                    received.inputs.append(told.Lent(at=at, instance=process.number))
                case say.DeviceReturned():
                    received.inputs.append(told.Returned(at=at, instance=process.number))
                case _:
                    raise AssertionError(f"nobody reads {message}")
        for lost in self._instances.replace_lost():
            self._moves.forget_instance(lost.number)
            if lost.was_joined:
                received.inputs.append(told.InstanceLost(at=at, instance=lost.number, reason=lost.reason))
        return received

    def _checked(self, spec: InstanceSpec) -> InstanceSpec:
        """The instance's own word on what it can do; a UserError where the run needs more."""
        if self._plane.frozen_versions and spec.max_versions < 2:
            raise UserError(
                "a frozen version plays a role, and this engine holds one version at a time",
                hint="play the role behind an endpoint: roles.NAME.url; or set engine.kind=native",
            )
        return spec

    # --- instances ------------------------------------------------------------------------------

    def serve_store(self) -> None:
        """Note that the store holds the newest version, and let every instance that waits for it load it."""
        self._has_store = True
        for process in self._instances.processes.values():
            if process.phase is InstancePhase.STARTING and process.spec is not None:
                process.enter(InstancePhase.LOADING)
                process.handle.send(say.LoadVersion(version=self._plane.window.newest))

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

    # --- requests -------------------------------------------------------------------------------

    def _grow(
        self,
        process: InstanceProcess,
        drawn: DrawnTokens,
        received: Received,
        *,
        is_last: bool = False,
        is_truncated: bool = False,
    ) -> PlacedRequest | None:
        """Append the tokens a request drew to its trajectory; None if the instance no longer has it."""
        placed = self._requests.find(drawn.request, process.number)
        if placed is None:
            return None
        partial = self._requests.partial[placed.trajectory]
        if partial.role_turn is not None:
            partial.tokens += drawn.tokens  # What it says is written down as a side effect, once it is whole.
        elif drawn.tokens or is_last:
            received.payloads.append(
                Progress(
                    trajectory=placed.trajectory,
                    attempt=partial.attempt,
                    start=len(partial.tokens),
                    tokens=drawn.tokens,
                    version=drawn.version,
                    logprobs=drawn.logprobs,
                    cut_logprobs=drawn.cut_logprobs,
                    experts=drawn.experts,
                    branch=partial.episode_turn.branch if partial.episode_turn is not None else 0,
                    is_last=is_last,
                    is_truncated=is_truncated,
                )
            )
            partial.tokens += drawn.tokens
        return placed

    def _ended(
        self, process: InstanceProcess, message: say.RequestEnded, at: float, received: Received
    ) -> None:
        found = self._requests.find(message.drawn.request, process.number)
        partial = self._requests.partial[found.trajectory] if found is not None else None
        if partial is not None and partial.episode_turn is not None:
            self._turn_ended(process, message, at, received)
            return
        is_truncated = message.is_truncated
        placed = self._grow(process, message.drawn, received, is_last=True, is_truncated=is_truncated)
        if placed is None:
            return
        key = placed.trajectory
        self._moves.forget_request(key)
        partial = self._requests.partial.pop(key)
        start, tokens = partial.start, tuple(partial.tokens)
        received.inputs.append(
            told.Ended(
                at=at,
                instance=process.number,
                trajectory=key,
                tokens=len(tokens),
                clock=message.clock,
                kv_tokens=message.kv_tokens,
                truncated=is_truncated,
            )
        )
        if partial.role_turn is not None:
            question = partial.role_turn.question
            received.effects.append(AnswerRole(question=question, tokens=tokens, finish=message.finish))
            return
        received.effects.append(
            ScoreTrajectory(
                trajectory=key, group=start.group, row=start.row, attempt=start.attempt, tokens=tokens
            )
        )

    def _turn_ended(
        self, process: InstanceProcess, message: say.RequestEnded, at: float, received: Received
    ) -> None:
        """A turn of an episode ended; its KV is held where the engine can."""
        placed = self._grow(process, message.drawn, received)
        if placed is None:
            return
        key, partial = placed.trajectory, self._requests.turn_ended(placed, is_held=message.is_held)
        assert self._episodes is not None, "only episodes have turns"
        received.inputs.append(
            told.TurnEnded(
                at=at,
                instance=process.number,
                trajectory=key,
                # Counted behind what control takes for the prompt, whatever the branch.
                tokens=partial.num_tokens - partial.start.prompt_tokens,
                clock=message.clock,
                kv_tokens=message.kv_tokens,
            )
        )
        received += self._episodes.turn_ended(key, message.finish)

    def _refused(
        self, process: InstanceProcess, message: say.RequestRefused, at: float, received: Received
    ) -> None:
        placed = self._requests.find(message.request, process.number)
        if placed is None:
            return
        key, reason = placed.trajectory, message.reason
        self._requests.forget(key)
        partial = self._requests.partial.get(key)
        role_turn = partial.role_turn if partial is not None else None
        if self._moves.forget(key):
            received.inputs.append(told.MoveFailed(at=at, trajectory=key, reason=reason))
        elif role_turn is not None and self._episodes is not None:
            self._episodes.roles.refused(role_turn.question, reason)
        else:
            received.inputs.append(told.Refused(at=at, trajectory=key, reason=reason))
