"""The process of an instance: `python -m dora_rl.run.workers.instance ADDRESS`. One engine and its loop.

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
import torch

from dora_rl.core.fleet import InstanceSpec
from dora_rl.engines.errors import EngineError
from dora_rl.engines.native.transfer import Exported
from dora_rl.engines.requests import Event, Failed, Finished, Request
from dora_rl.launch.breaking import telling_why
from dora_rl.launch.channel import Channel
from dora_rl.run import messages as say
from dora_rl.run.workers.opening import open_tracked
from dora_rl.run.workers.residents import Loading, Residents
from dora_rl.run.workers.tracked import TrackedEngine

_PRESSURE = 0.97
"""Share of the KV in use at which it asks for help."""
_IDLE_S = 0.05
_SWITCH_S = 0.0005
"""That a round waits for the interpreter where another thread reads a version: by default ten times as long,
after every wait for the device."""


class InstanceWorker:
    """One engine, obeying."""

    def __init__(self, channel: Channel, begin: say.Begin, engine: TrackedEngine, device: str) -> None:
        self._channel = channel
        self._setup = begin.setup
        self._number = begin.number
        self._engine = engine
        self._residents = Residents(engine, Path(begin.store), device)
        self._told: dict[int, int] = {}
        """Requests that are here, with how many of their drawn tokens were told."""
        self._loading: Loading | None = None
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

    @property
    def spec(self) -> InstanceSpec:
        setup, limits = self._setup.engine, self._setup.engine.limits
        return InstanceSpec(
            slots=limits.max_running,
            kv_tokens=limits.num_blocks * limits.block_size,
            max_versions=setup.max_versions,
            elastic=self._setup.devices.pauses(self._number),
            # What arrives waits in host memory until it has a place on the device.
            moves_kv=limits.num_host_blocks > 0,
            # The scheduler preempts at the step that lacks a block, which no report could foresee.
            parks=False,
        )

    def run(self) -> None:
        """Until told to stop."""
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
        """Also what was aborted comes this way, and is not spoken of any more."""
        if event.id not in self._told:
            return
        if isinstance(event, Failed):
            del self._told[event.id]
            self._channel.send(say.RequestRefused(request=event.id, reason=event.message))
            return
        self._channel.send(
            say.RequestEnded(
                drawn=_rest(event, self._told[event.id]),
                clock=self._engine.clock,
                kv_tokens=self._engine.load().kv_tokens,
                is_truncated=event.reason == "length",
            )
        )
        del self._told[event.id]

    def _untold(self, id: int) -> say.Drawn:
        """What it drew since it was last spoken of; from now on that is told."""
        drawn = self._engine.drawn(id, self._told[id])
        assert drawn is not None, f"request {id} ended and was not told"
        self._told[id] += len(drawn.tokens)
        return drawn

    def _report(self) -> None:
        load, engine = self._engine.load(), self._engine
        drawn = [self._untold(id) for id in self._told]
        self._channel.send(
            say.Report(
                clock=engine.clock,
                kv_tokens=load.kv_tokens,
                step_s=engine.step_s or 0.0,
                is_pressed=load.kv_tokens >= _PRESSURE * load.kv_capacity,
                drawn=tuple(each for each in drawn if each.tokens),
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
            drawn = self._untold(id)
            self._engine.abort(id)
        else:
            exported = self._engine.export_request(id)
            drawn = _rest(_turn_of(exported), self._told[id])
            kv_bytes = write_exported(exported, Path(command.path))
        del self._told[id]
        self._channel.send(say.RequestExported(drawn=drawn, kv_bytes=kv_bytes))

    def _import(self, command: say.ImportRequest) -> None:
        try:
            exported = Exported.from_bytes(Path(command.path).read_bytes())
            arrived = _renamed(exported, command.request)
            self._engine.import_request(arrived)
        except (EngineError, OSError) as error:
            self._channel.send(say.RequestRefused(request=command.request, reason=str(error)))
            return
        self._told[command.request] = len(exported.header.logprobs)
        self._channel.send(say.RequestImported(request=command.request))

    # --- versions -------------------------------------------------------------------------------

    def _load(self, command: say.LoadVersion) -> None:
        self._loading = self._residents.begin(command.version, command.drop)

    def _finish_loading(self) -> None:
        loading, self._loading = self._loading, None
        assert loading is not None, "no version is on its way"
        with self._channel.kept_alive(self._setup.recipe.patience.load_s):
            load_s = self._residents.finish(loading)
        self._engine.rest()
        self._channel.send(say.VersionLoaded(version=loading.version, load_s=load_s))

    def _drop(self, command: say.DropVersion) -> None:
        if command.version in self._engine.load().versions:
            self._engine.drop_version(command.version)

    def _interrupt(self, command: say.InterruptAll) -> None:
        """Everything leaves with what it has and enters again under the other version."""
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


def _goes_beside(command: object, loading: Loading) -> bool:
    """Whether a command does not wait for a version on its way."""
    if isinstance(command, say.StartRequest):
        return command.request.version != loading.version
    return isinstance(command, say.AbortRequest | say.LendDevice | say.ReturnDevice)


def _turn_of(exported: Exported) -> Finished:
    header = exported.header
    return Finished(
        id=header.request.id,
        version=header.request.version,
        tokens=header.tokens[header.turn_start :],
        logprobs=header.logprobs,
        cut_logprobs=header.cut_logprobs,
        reason="aborted",
    )


def _rest(turn: Finished, first: int) -> say.Drawn:
    """A turn from its `first` token on."""
    return say.Drawn(
        request=turn.id,
        version=turn.version,
        tokens=turn.tokens[first:],
        logprobs=turn.logprobs[first:],
        cut_logprobs=turn.cut_logprobs[first:],
    )


def continued(request: Request, tokens: tuple[int, ...]) -> Request:
    """The same request behind these tokens, which count against its length."""
    stopping = request.stopping
    return msgspec.structs.replace(
        request,
        continued=(*request.continued, *tokens),
        stopping=msgspec.structs.replace(stopping, max_new_tokens=stopping.max_new_tokens - len(tokens)),
    )


def _renamed(exported: Exported, id: int) -> Exported:
    header = exported.header
    request = msgspec.structs.replace(header.request, id=id)
    return Exported(header=msgspec.structs.replace(header, request=request), kv=exported.kv)


def write_exported(exported: Exported, path: Path) -> int:
    """How many bytes; none where there is no room, and its KV is computed again where it goes."""
    content = exported.to_bytes()
    try:
        path.write_bytes(content)
    except OSError:
        path.unlink(missing_ok=True)
        return 0
    return len(content)


def main(address: str) -> None:
    """Open the engine, say so, and obey."""
    channel = Channel.connect(address, say.InstanceCommand)
    begin = channel.receive()
    assert isinstance(begin, say.Begin), f"the first message says what to open: {begin}"
    torch.set_num_threads(begin.setup.devices.instance_threads)
    sys.setswitchinterval(_SWITCH_S)
    with telling_why(channel):
        with channel.kept_alive(begin.setup.recipe.patience.start_s):
            engine, device = open_tracked(begin)
        # To its log.
        print(f"memory on {device}, before the first version:\n{engine.ledger}", flush=True)
        worker = InstanceWorker(channel, begin, engine, device)
        channel.send(say.InstanceReady(spec=worker.spec, pid=os.getpid()))
        worker.run()
    channel.leave()


if __name__ == "__main__":
    main(sys.argv[1])
