"""A live run whose responses have prescribed lengths: its speed means something, what it learns does not.

The length is a function of a request's random stream, so every schedule is given the same work. Everything
else is the run that `run_whole` runs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dora_rl.bench.whole_run import run_whole
from dora_rl.core.history import Watcher
from dora_rl.core.record import Record
from dora_rl.engines.requests import Request, Stopping, StreamKey
from dora_rl.launch.local import LOCAL
from dora_rl.launch.protocol import Handle, WorkerSpec
from dora_rl.run import messages as say
from dora_rl.run.run_setup import RunSetup

LengthOf = Callable[[StreamKey], int]
"""A function that gives the tokens of the response that a random stream draws."""


def run_prescribed(
    setup: RunSetup, inputs: Path, length_of: LengthOf, watchers: Sequence[Watcher] = ()
) -> None:
    """Run a set-up to its end, leaving everything in its run directory."""
    run_whole(setup, inputs, watchers, launch=PrescribingLaunch(length_of))


def prescribed(request: Request, length_of: LengthOf) -> Request:
    """The request with its prescribed length as its limit; tokens that exist already count."""
    left = length_of(request.key) - len(request.continued)
    assert left > 0, f"request {request.id} goes on behind its end: {-left} tokens too many"
    return replace(request, stopping=Stopping(max_new_tokens=left, is_length_prescribed=True))


class PrescribingLaunch:
    """A launch of local workers that gives every request its length on its way to an instance."""

    def __init__(self, length_of: LengthOf) -> None:
        self._length_of = length_of

    def start(self, worker: WorkerSpec, replies: Any) -> Handle:
        """Start a local worker behind a handle that prescribes lengths."""
        return PrescribingHandle(LOCAL.start(worker, replies), self._length_of)


class PrescribingHandle:
    """A worker's handle that gives requests their prescribed length and passes all else on."""

    def __init__(self, handle: Handle, length_of: LengthOf) -> None:
        self._handle = handle
        self._length_of = length_of
        self.flush, self.receive = handle.flush, handle.receive
        self.fileno, self.end = handle.fileno, handle.end

    def send(self, message: Record) -> None:
        """Send a message to the worker; a request gets its prescribed length."""
        if isinstance(message, say.StartRequest):
            message = replace(message, request=prescribed(message.request, self._length_of))
        self._handle.send(message)

    @property
    def is_alive(self) -> bool:
        """Whether the worker's process is alive."""
        return self._handle.is_alive

    @property
    def is_stopped(self) -> bool:
        """Whether the worker's process is known to be stopped."""
        return self._handle.is_stopped

    @property
    def node(self) -> str | None:
        return self._handle.node

    @property
    def is_placed(self) -> bool:
        return self._handle.is_placed

    @property
    def is_mid_message(self) -> bool:
        """Whether a part of a message has arrived and the rest is on its way."""
        return self._handle.is_mid_message
