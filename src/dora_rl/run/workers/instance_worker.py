"""The process of an instance: `python -m dora_rl.run.workers.instance_worker ADDRESS`. One engine, its loop.

Commands are obeyed between steps, in the order they came; a version is read beside them. What is drawn is
told within a report's time, and with the last tokens of a request its end. It never decides anything: not
which version, not what is moved.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dora_rl.engines.errors import EngineError
from dora_rl.engines.kinds import load_kind
from dora_rl.engines.protocol import Engine, EngineOpening, VersionLoad
from dora_rl.engines.requests import DrawnTokens, Event, Failed, Request
from dora_rl.launch.breaking import telling_why
from dora_rl.launch.channel import Channel
from dora_rl.run import messages as say
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.workers.stored_versions import StoredVersions

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
        """Requests on this instance, with how many of their drawn tokens were sent."""
        self._loading: VersionLoad | None = None
        self._began_loading_at = 0.0
        self._is_paused = False
        self._reported_at = 0.0
        self._obey: dict[type, Callable[[Any], None]] = {
            say.StartRequest: self._generate,
            say.AbortRequest: self._abort,
            say.LoadVersion: self._load,
            say.DropVersion: self._drop,
            say.ExportRequest: self._export,
            say.ImportRequest: self._import,
            say.InterruptAll: self._interrupt,
            say.LendDevice: self._pause,
            say.ReturnDevice: self._go_on,
        }

    def run(self) -> None:
        """Obey commands and run engine steps until told to stop."""
        is_idle = False
        while True:
            command = self._channel.receive(_IDLE_S if is_idle else 0.0)
            while command is not None:
                if isinstance(command, say.Stop):
                    return
                if self._loading is not None and not _goes_beside(command, self._loading):
                    self._finish_loading()
                self._obey[type(command)](command)
                command = self._channel.receive(0.0)
            is_idle = self._is_paused or not self._engine.step()
            if is_idle:
                self._engine.rest()
            if self._loading is not None and (is_idle or self._loading.is_read):
                self._finish_loading()
            for event in self._engine.finished():
                self._ended(event)
            if time.monotonic() - self._reported_at >= self._setup.recipe.engine.report_every_s:
                self._report()

    # --- requests -------------------------------------------------------------------------------

    def _generate(self, command: say.StartRequest) -> None:
        self._told[command.request.id] = 0
        self._engine.submit(command.request)

    def _abort(self, command: say.AbortRequest) -> None:
        if self._told.pop(command.request, None) is not None:
            self._engine.abort(command.request)

    def _ended(self, event: Event) -> None:
        """Send the end of a request; one that was aborted comes this way too, and nothing is sent of it."""
        if event.id not in self._told:
            return
        if isinstance(event, Failed):
            del self._told[event.id]
            self._channel.send(say.RequestRefused(request=event.id, reason=event.message))
            return
        load = self._engine.load()
        self._channel.send(
            say.RequestEnded(
                drawn=event.drawn.since(self._told[event.id]),
                clock=load.clock,
                kv_tokens=load.kv_tokens,
                is_truncated=event.reason == "length",
            )
        )
        del self._told[event.id]

    def _report(self) -> None:
        load = self._engine.load()
        untold: list[DrawnTokens] = []
        for id, num_told in self._told.items():
            drawn = self._engine.drawn(id, num_told)
            assert drawn is not None, f"request {id} ended and was not told"
            self._told[id] += len(drawn.tokens)
            untold.append(drawn)
        self._channel.send(
            say.Report(
                clock=load.clock,
                kv_tokens=load.kv_tokens,
                step_s=load.round_s or 0.0,
                is_pressed=load.kv_tokens >= _PRESSURE * load.kv_capacity,
                drawn=tuple(each for each in untold if each.tokens),
            )
        )
        self._reported_at = time.monotonic()

    # --- moving ---------------------------------------------------------------------------------

    def _export(self, command: say.ExportRequest) -> None:
        id = command.request
        if id not in self._told:
            return  # It ended meanwhile, and that was told.
        kv_bytes = 0
        if command.path is None:
            drawn = self._engine.drawn(id, self._told[id])
            assert drawn is not None, f"request {id} ended and was not told"
            self._engine.abort(id)
        else:
            left = self._engine.export_file(id, Path(command.path))
            drawn, kv_bytes = left.drawn.since(self._told[id]), left.kv_bytes
        del self._told[id]
        self._channel.send(say.RequestExported(drawn=drawn, kv_bytes=kv_bytes))

    def _import(self, command: say.ImportRequest) -> None:
        try:
            arrived = self._engine.import_file(command.request, Path(command.path))
        except EngineError as error:
            self._channel.send(say.RequestRefused(request=command.request, reason=str(error)))
            return
        self._told[command.request] = len(arrived.tokens)
        self._channel.send(say.RequestImported(request=command.request))

    # --- versions -------------------------------------------------------------------------------

    def _load(self, command: say.LoadVersion) -> None:
        self._began_loading_at = time.monotonic()
        self._loading = self._engine.begin_version(command.version, command.drop)

    def _finish_loading(self) -> None:
        loading, self._loading = self._loading, None
        assert loading is not None, "no version is on its way"
        with self._channel.kept_alive(self._setup.recipe.patience.load_s):
            self._engine.finish_version(loading)
        load_s = time.monotonic() - self._began_loading_at
        self._engine.rest()
        self._channel.send(say.VersionLoaded(version=loading.version, load_s=load_s))

    def _drop(self, command: say.DropVersion) -> None:
        if command.version in self._engine.load().versions:
            self._engine.drop_version(command.version)

    def _interrupt(self, command: say.InterruptAll) -> None:
        """Take every request out with its tokens, and start it again under the other version."""
        for event in self._engine.finished():
            self._ended(event)
        self._report()
        left = [self._taken_out(id) for id in self._told]
        self._engine.finished()  # Their ends are no news.
        resident = self._engine.load().versions
        self._load(
            say.LoadVersion(version=command.version, drop=tuple(v for v in resident if v != command.version))
        )
        self._finish_loading()
        for request in left:
            self._generate(
                say.StartRequest(request=msgspec.structs.replace(request, version=command.version))
            )

    def _taken_out(self, id: int) -> Request:
        drawn, request = self._engine.drawn(id), self._engine.request(id)
        assert drawn is not None, f"request {id} ended and was not told"
        self._engine.abort(id)
        return continued(request, drawn.tokens)

    # --- devices --------------------------------------------------------------------------------

    def _pause(self, command: say.LendDevice) -> None:
        self._is_paused = True
        self._channel.send(say.DeviceLent())

    def _go_on(self, command: say.ReturnDevice) -> None:
        self._is_paused = False
        self._channel.send(say.DeviceReturned())


def _goes_beside(command: object, loading: VersionLoad) -> bool:
    """Whether a command may be obeyed while a version is still being loaded."""
    if isinstance(command, say.StartRequest):
        return command.request.version != loading.version
    return isinstance(command, say.AbortRequest | say.LendDevice | say.ReturnDevice)


def continued(request: Request, tokens: tuple[int, ...]) -> Request:
    """The same request continued behind these tokens, which count against its length."""
    stopping = request.stopping
    return msgspec.structs.replace(
        request,
        continued=(*request.continued, *tokens),
        stopping=msgspec.structs.replace(stopping, max_new_tokens=stopping.max_new_tokens - len(tokens)),
    )


def main(address: str) -> None:
    """Open the engine of this instance, say that it is ready, and obey commands until told to stop."""
    channel = Channel.connect(address, say.InstanceCommand)
    begin = channel.receive()
    assert isinstance(begin, say.Begin), f"the first message says what to open: {begin}"
    setup, devices = begin.setup, begin.setup.devices
    with telling_why(channel):
        with channel.kept_alive(setup.recipe.patience.start_s):
            tokenizer = LiveLayout(root=Path(setup.run_directory)).tokenizer
            versions = StoredVersions(Path(begin.store))
            versions.open()
            # No version is resident yet.
            engine = load_kind(setup.recipe.engine.kind).open(
                EngineOpening(
                    config=setup.engine,
                    model=Path(setup.model_directory),
                    versions=versions,
                    device=devices.instance_home(begin.number),
                    num_threads=devices.instance_threads,
                    stop_tokens=begin.stop_tokens,
                    tokenizer=tokenizer if setup.recipe.response.stop_strings else None,
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
