"""The process of an instance: `python -m dora_rl.run.workers.instance_worker ADDRESS`. One engine, its loop.

Commands are obeyed between steps, in the order they came; a version is read beside them. What is drawn is
told within a report's time, and with the last tokens of a request its end. It never decides anything: not
which version, not what is moved.
"""

import os
import sys
import time
from pathlib import Path

import msgspec

from dora_rl.core.instance_seconds import InstanceSeconds
from dora_rl.core.user_cache import keep_compiled
from dora_rl.engines.errors import EngineError
from dora_rl.engines.kinds import load_kind
from dora_rl.engines.protocol import Engine, EngineOpening, ParksTurns, VersionLoad
from dora_rl.engines.requests import DrawnTokens, Event, Failed, Request
from dora_rl.launch.breaking import telling_why
from dora_rl.launch.channel import Channel
from dora_rl.run import messages as say
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.workers.turns_without_kv import TurnsWithoutKv

_PRESSURE = 0.97
"""Share of the KV cache in use at which an instance reports pressure."""
_IDLE_S = 0.05


class InstanceWorker:
    """One engine, its loop, and the commands it obeys."""

    def __init__(self, channel: Channel, begin: say.Begin, engine: Engine) -> None:
        self._channel = channel
        self._setup = begin.setup
        self._engine = engine
        self._told: dict[int, int] = {}
        """Requests on this instance, with how many of the tokens drawn in their turns were sent."""
        self._without_kv = TurnsWithoutKv(engine_holds_turns=engine.abilities.holds_turns)
        self._parks: ParksTurns | None = engine if isinstance(engine, ParksTurns) else None
        self._loading: VersionLoad | None = None
        self._began_loading_at = 0.0
        self._is_paused = False
        self._reported_at = 0.0
        self._kv_moves_s = self._weight_loads_s = self._other_s = 0.0
        """Seconds for which these held requests up."""

    def run(self) -> None:
        """Obey commands and run engine steps until told to stop."""
        engine, is_idle = self._engine, False
        while True:
            command = self._channel.receive(_IDLE_S if is_idle else 0.0)
            began, apart_s = time.monotonic(), self._kv_moves_s + self._weight_loads_s
            while command is not None:
                if isinstance(command, say.Stop):
                    return
                if self._loading is not None and not _goes_beside(command, self._loading):
                    self._finish_loading()
                match command:
                    case say.StartRequest(request=request):
                        self._submit(request)
                    case say.ResumeRequest():
                        self._resume(command)
                    case say.AbortRequest(request=id):
                        if self._told.pop(id, None) is not None and self._without_kv.take(id) is None:
                            engine.abort(id)
                    case say.ParkRequest(request=id):
                        if self._parks is not None and id in self._told:
                            self._parks.park(id)
                    case say.LoadVersion(version=version, drop=drop):
                        self._began_loading_at = time.monotonic()
                        self._loading = engine.begin_version(version, drop)
                    case say.DropVersion(version=version):
                        if version in engine.load().versions:
                            engine.drop_version(version)
                    case say.ExportRequest():
                        self._export(command)
                    case say.ImportRequest():
                        self._import(command)
                    case say.InterruptAll(version=version):
                        self._interrupt(version)
                    case say.LendDevice():
                        self._is_paused = True
                        self._channel.send(say.DeviceLent())
                    case say.ReturnDevice():
                        self._is_paused = False
                        self._channel.send(say.DeviceReturned())
                    case _:
                        raise AssertionError(f"{command} is no command to an instance")
                command = self._channel.receive(0.0)

            step_began = time.monotonic()
            is_idle = self._is_paused or not engine.step()
            step_s = time.monotonic() - step_began
            if is_idle:
                engine.rest()
            if self._loading is not None and (is_idle or self._loading.is_read):
                self._finish_loading()
            for event in engine.finished():
                self._ended(event)
            if time.monotonic() - self._reported_at >= self._setup.recipe.engine.report_every_s:
                self._report()
            if not is_idle:
                apart_s -= self._kv_moves_s + self._weight_loads_s
                self._other_s += time.monotonic() - began - step_s + apart_s

    # --- requests -------------------------------------------------------------------------------

    def _submit(self, request: Request) -> None:
        self._told[request.id] = 0
        self._engine.submit(self._without_kv.begin(request))

    def _resume(self, command: say.ResumeRequest) -> None:
        """Begin the next turn of a held request; one that left meanwhile is no news."""
        id = command.request
        if id not in self._told:
            return
        request = self._without_kv.take(id)
        if request is None:
            self._engine.resume(id, command.tokens, command.max_new_tokens, command.stop_strings)
        else:
            self._submit(request.behind(command.tokens, command.max_new_tokens, command.stop_strings))

    @property
    def _is_generating(self) -> bool:
        """Whether a request is in a turn, so that it loses what time something else takes."""
        return any(id not in self._without_kv and not self._engine.is_held(id) for id in self._told)

    def _ended(self, event: Event) -> None:
        """Send the end of a turn; one that was aborted comes this way too, and nothing is sent of it."""
        if event.id not in self._told:
            return
        if isinstance(event, Failed):
            del self._told[event.id]
            self._without_kv.take(event.id)
            if self._engine.drawn(event.id) is not None:
                # It is still held, and could not be resumed.
                self._engine.abort(event.id)
            self._channel.send(say.RequestRefused(request=event.id, reason=event.message))
            return
        load = self._engine.load()
        is_held = self._without_kv.end(event.id, event.tokens) or event.is_held
        self._channel.send(
            say.RequestEnded(
                drawn=event.drawn.since(self._told[event.id]),
                clock=load.clock,
                kv_tokens=load.kv_tokens,
                finish="length" if event.reason == "length" else "stop",
                is_held=is_held,
            )
        )
        if is_held:
            self._told[event.id] = 0  # Of its next turn.
        else:
            del self._told[event.id]

    def _report(self) -> None:
        load = self._engine.load()
        untold: list[DrawnTokens] = []
        for id in self._told:
            drawn = self._untold(id)
            self._told[id] += len(drawn.tokens)
            untold.append(drawn)
        self._channel.send(
            say.Report(
                clock=load.clock,
                kv_tokens=load.kv_tokens,
                step_s=load.round_s or 0.0,
                is_pressed=load.kv_tokens >= _PRESSURE * load.kv_capacity,
                drawn=tuple(each for each in untold if each.tokens),
                seconds=InstanceSeconds(
                    prefill_s=load.prefill_s,
                    recompute_s=load.recompute_s,
                    kv_moves_s=load.kv_moves_s + self._kv_moves_s,
                    weight_loads_s=self._weight_loads_s,
                    other_s=self._other_s,
                    pass_rows=load.pass_rows,
                ),
            )
        )
        self._reported_at = time.monotonic()

    def _untold(self, id: int) -> DrawnTokens:
        """What a request drew in its turn and was not sent yet; nothing of one between turns."""
        if id in self._without_kv:
            version = self._without_kv.version(id)
            return DrawnTokens(request=id, version=version, tokens=(), logprobs=(), cut_logprobs=())
        drawn = self._engine.drawn(id, self._told[id])
        assert drawn is not None, f"request {id} ended and was not told"
        return drawn

    # --- moving ---------------------------------------------------------------------------------

    def _export(self, command: say.ExportRequest) -> None:
        id = command.request
        if id not in self._told:
            return  # It ended meanwhile, and that was told.
        kv_bytes, began = 0, time.monotonic()
        if command.path is None or id in self._without_kv or self._without_kv.begun(id):
            drawn = self._untold(id)
            if self._without_kv.take(id) is None:
                self._engine.abort(id)
        else:
            left = self._engine.export_file(id, Path(command.path))
            drawn, kv_bytes = left.drawn.since(self._told[id]), left.kv_bytes
        del self._told[id]
        # Seconds that hold nobody up are no loss: what is left, or was there before, waits for them.
        if self._is_generating:
            self._kv_moves_s += time.monotonic() - began
        self._channel.send(say.RequestExported(drawn=drawn, kv_bytes=kv_bytes))

    def _import(self, command: say.ImportRequest) -> None:
        began = time.monotonic()
        try:
            arrived = self._engine.import_file(command.request, Path(command.path))
        except EngineError as error:
            self._channel.send(say.RequestRefused(request=command.request, reason=str(error)))
            return
        if self._is_generating:
            self._kv_moves_s += time.monotonic() - began
        self._told[command.request] = len(arrived.tokens)
        self._channel.send(say.RequestImported(request=command.request))

    # --- versions -------------------------------------------------------------------------------

    def _finish_loading(self) -> None:
        loading, self._loading = self._loading, None
        assert loading is not None, "no version is on its way"
        began = time.monotonic()
        with self._channel.kept_alive(self._setup.recipe.patience.load_s):
            self._engine.finish_version(loading)
        if self._is_generating:
            self._weight_loads_s += time.monotonic() - began
        load_s = time.monotonic() - self._began_loading_at
        self._channel.send(say.VersionLoaded(version=loading.version, load_s=load_s))
        self._engine.rest()

    def _interrupt(self, version: int) -> None:
        """Take every request out with its tokens, and start it again under the other version.

        One between turns is started again when it is resumed.
        """
        for event in self._engine.finished():
            self._ended(event)
        self._report()
        waiting = {id for id in self._told if id in self._without_kv or self._engine.is_held(id)}
        left = [msgspec.structs.replace(self._taken_out(id), version=version) for id in self._told]
        for request in left:
            if request.id in waiting:
                self._without_kv.wait(request)
        self._engine.finished()  # Their ends are no news.
        resident = self._engine.load().versions
        self._began_loading_at = time.monotonic()
        self._loading = self._engine.begin_version(version, tuple(old for old in resident if old != version))
        self._finish_loading()
        for request in left:
            if request.id not in waiting:
                self._submit(request)

    def _taken_out(self, id: int) -> Request:
        begun = self._without_kv.begun(id)
        if (waiting := self._without_kv.take(id)) is not None:
            return waiting
        drawn, request = self._engine.drawn(id), begun or self._engine.request(id)
        assert drawn is not None, f"request {id} ended and was not told"
        self._engine.abort(id)
        # What it drew counts against its length. A turn that is over has all its tokens in the request.
        left = request.stopping.max_new_tokens - len(drawn.tokens)
        return request.behind(drawn.tokens, left)


def _goes_beside(command: object, loading: VersionLoad) -> bool:
    """Whether a command may be obeyed while a version is still being loaded."""
    if isinstance(command, say.StartRequest):
        return command.request.version != loading.version
    return isinstance(
        command, say.ResumeRequest | say.AbortRequest | say.ParkRequest | say.LendDevice | say.ReturnDevice
    )


def main(address: str) -> None:
    """Open the engine of this instance, say that it is ready, and obey commands until told to stop."""
    channel = Channel.connect(address, say.InstanceCommand)
    begin = channel.receive()
    assert isinstance(begin, say.Begin), f"the first message says what to open: {begin}"
    setup, devices = begin.setup, begin.setup.devices
    keep_compiled()
    with telling_why(channel):
        with channel.kept_alive(setup.recipe.patience.start_s):
            # It takes seconds to import, in which the version to be loaded could be retired: before ready.
            from dora_rl.weights.store import Store

            tokenizer = LiveLayout(root=Path(setup.run_directory)).tokenizer
            # No version is resident yet.
            engine = load_kind(setup.recipe.engine.kind).open(
                EngineOpening(
                    config=setup.engine,
                    model=Path(setup.model_directory),
                    versions=Store(Path(begin.store)),
                    device=devices.instance_home(begin.number),
                    num_threads=devices.instance_threads,
                    stop_tokens=begin.stop_tokens,
                    tokenizer=tokenizer if setup.looks_for_strings else None,
                )
            )
        worker = InstanceWorker(channel, begin, engine)
        is_elastic = devices.pauses(begin.number)
        spec = engine.abilities.instance_spec(setup.engine.limits, is_elastic=is_elastic)
        channel.send(say.InstanceReady(spec=spec, pid=os.getpid()))
        worker.run()
    channel.leave()


if __name__ == "__main__":
    main(sys.argv[1])
