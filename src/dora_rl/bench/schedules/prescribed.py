"""A live run whose responses have prescribed lengths: its speed means something, what it learns does not.

The length is a function of a request's random stream, so every schedule is given the same work. Everything
else is the run that `run_live` runs.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from dora_rl.engines.requests import Request, Stopping, StreamKey
from dora_rl.launch.local import LOCAL
from dora_rl.run import messages as say
from dora_rl.run.orchestrator.loop import Orchestrator
from dora_rl.run.orchestrator.opening import Opened, open_new
from dora_rl.run.orchestrator.writing import Watcher
from dora_rl.run.setup import RunSetup

LengthOf = Callable[[StreamKey], int]
"""Tokens of the response that this stream draws."""


def run_prescribed(setup: RunSetup, length_of: LengthOf, watchers: Sequence[Watcher] = ()) -> None:
    """Run a set-up to its end, leaving everything in its run directory."""
    opened = open_new(setup, LOCAL)
    try:
        orchestrator = _PrescribingOrchestrator(opened, tuple(watchers), length_of)
        orchestrator.run()
        orchestrator.stop()
    finally:
        opened.close()


def prescribed(request: Request, length_of: LengthOf) -> Request:
    """The request, to end where it was prescribed; tokens that exist already count."""
    left = length_of(request.key) - len(request.continued)
    assert left > 0, f"request {request.id} goes on behind its end: {-left} tokens too many"
    return replace(request, stopping=Stopping(max_new_tokens=left, is_length_prescribed=True))


class _PrescribingOrchestrator(Orchestrator):
    """Every request is given its length on its way to an instance."""

    def __init__(self, opened: Opened, watchers: tuple[Watcher, ...], length_of: LengthOf) -> None:
        super().__init__(opened, LOCAL, watchers)
        send = self._instances.send

        def send_prescribed(number: int, message: say.Message) -> None:
            if isinstance(message, say.StartRequest):
                message = replace(message, request=prescribed(message.request, length_of))
            send(number, message)

        self._instances.send = send_prescribed  # type: ignore[method-assign]
