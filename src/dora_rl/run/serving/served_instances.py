"""Instances that answer whoever asks: each request to the one with the fewest, under its newest version.

    request ──> the least busy instance ──> tokens, whole    (batched continuously by its engine)
    version ──> every instance, beside the one before it; that goes when its last request has ended

Lives in a loop of asyncio, which watches the processes. Whoever dies ends it all, with its last words.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from msgspec import Struct, field

from dora_rl.core.errors import DoraError
from dora_rl.core.turn_finish import TurnFinish
from dora_rl.engines.requests import Request
from dora_rl.launch.protocol import Handle, Launch
from dora_rl.run import messages as say
from dora_rl.run.instances import start_instance
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.worker_deaths import end_if_final, how_it_ended


class RequestRefusal(DoraError):
    """The engine cannot carry out a request."""


class DrawnResponse(Struct, frozen=True, kw_only=True):
    """All that a request drew."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Logprob of each token at the sampling temperature, over the full vocabulary."""
    version: int
    finish: TurnFinish


class OpenRequest(Struct, eq=False):
    """A request that an instance works on, and what it drew so far."""

    version: int
    done: "asyncio.Future[DrawnResponse]"
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class ServedInstance(Struct, eq=False):
    """One process, its versions and its requests."""

    number: int
    handle: Handle
    versions: list[int] = field(default_factory=list)
    """Resident versions; the last one answers what comes."""
    requests: dict[int, OpenRequest] = field(default_factory=dict)
    last_words: str | None = None


class ServedInstances(ExitStack):
    """The instances of one server; closed when its `with` ends."""

    def __init__(self, setup: RunSetup, stop_tokens: tuple[int, ...], *, launch: Launch) -> None:
        """Start the processes; call in the loop that serves."""
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._layout = LiveLayout(root=Path(setup.run_directory))
        self._layout.logs.mkdir(exist_ok=True)
        self._ids = count()
        self._version = 0
        self._loaded, self._settled = asyncio.Event(), asyncio.Event()
        self.broken: asyncio.Future[None] = self._loop.create_future()
        """Raises as soon as an instance has died."""
        self._instances: list[ServedInstance] = []
        try:
            for number in range(setup.devices.instances):
                handle = start_instance(number, setup, self._layout, stop_tokens, launch)
                self.callback(self._end, handle)
                instance = ServedInstance(number, handle)
                self._instances.append(instance)
                self._loop.add_reader(handle.fileno(), self._hear, instance)
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> int:
        """The newest version that every instance has."""
        return min(each.versions[-1] for each in self._instances)

    async def settled(self) -> None:
        """Wait until every instance has the newest version, and no other."""
        await self._settled.wait()

    async def load(self, version: int) -> None:
        """Have every instance take up a version, which answers whatever comes once it is there.

        One that is settled, as an engine has room for two.
        """
        self._version = version
        self._loaded.clear()
        self._settled.clear()
        for instance in self._instances:
            instance.handle.send(say.LoadVersion(version=version))
        await self._loaded.wait()

    async def drawn(self, make: Callable[[int, int], Request]) -> DrawnResponse:
        """The whole response to a request, which is made from its id and its version.

        Raises RequestRefusal. Whoever gives up waiting gives the request up.
        """
        instance = min(self._instances, key=lambda each: len(each.requests))
        id, version = next(self._ids), instance.versions[-1]
        request = OpenRequest(version, self._loop.create_future())
        instance.requests[id] = request
        instance.handle.send(say.StartRequest(request=make(id, version)))
        try:
            return await request.done
        finally:
            del instance.requests[id]
            if request.done.cancelled():
                instance.handle.send(say.AbortRequest(request=id))
            self._drop_unused(instance)

    # --- inside ---------------------------------------------------------------------------------

    def _end(self, handle: Handle) -> None:
        self._loop.remove_reader(handle.fileno())
        handle.end(within_s=0.0)

    def _hear(self, instance: ServedInstance) -> None:
        handle = instance.handle
        handle.flush()
        try:
            for message in handle.receive():
                self._take(instance, message)
            if not handle.is_alive:
                self._loop.remove_reader(handle.fileno())
                log = self._layout.instance_log(instance.number)
                reason = how_it_ended(handle.end(within_s=1.0), instance.last_words, log)
                raise DoraError(
                    f"instance {instance.number} {reason}", hint="`dora doctor` says what this machine lacks"
                )
        except DoraError as error:
            if not self.broken.done():
                self.broken.set_exception(error)

    def _take(self, instance: ServedInstance, message: object) -> None:
        match message:
            case say.Broken():
                instance.last_words = message.message
                end_if_final(message)
            case say.InstanceReady():
                instance.handle.send(say.LoadVersion(version=self._version))
            case say.VersionLoaded():
                instance.versions.append(message.version)
                self._drop_unused(instance)
            case say.Report():
                for drawn in message.drawn:
                    if (request := instance.requests.get(drawn.request)) is not None:
                        request.tokens += drawn.tokens
                        request.logprobs += drawn.logprobs
            case say.RequestEnded():
                self._ended(instance, message)
            case say.RequestRefused():
                if (request := instance.requests.get(message.request)) is not None:
                    _answer(request, RequestRefusal(message.reason))

    def _ended(self, instance: ServedInstance, message: say.RequestEnded) -> None:
        request = instance.requests.get(message.drawn.request)
        if request is not None:
            response = DrawnResponse(
                tokens=(*request.tokens, *message.drawn.tokens),
                logprobs=(*request.logprobs, *message.drawn.logprobs),
                version=message.drawn.version,
                finish=message.finish,
            )
            _answer(request, response)

    def _drop_unused(self, instance: ServedInstance) -> None:
        """Free versions before the last that no request is on any more."""
        used = {request.version for request in instance.requests.values()}
        for version in [each for each in instance.versions[:-1] if each not in used]:
            instance.versions.remove(version)
            instance.handle.send(say.DropVersion(version=version))
        if all(each.versions[-1:] == [self._version] for each in self._instances):
            self._loaded.set()
        if all(each.versions == [self._version] for each in self._instances):
            self._settled.set()


def _answer(request: OpenRequest, answer: DrawnResponse | RequestRefusal) -> None:
    if request.done.done():
        return
    if isinstance(answer, DrawnResponse):
        request.done.set_result(answer)
    else:
        request.done.set_exception(answer)
