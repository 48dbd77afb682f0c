"""What an engine is to the rest of the system: three small protocols and a statement of abilities.

Commands go in and events come out as plain data. Weights and KV travel by handle, whose type is the
engine's own: a directory or a set of tensors here, a name in another process there. Control asks an engine
only for what its Capabilities declare, and otherwise falls back: one version an instance, prefill again.
"""

from typing import Protocol, TypeVar

from dora_rl.core.record import Record
from dora_rl.engines.requests import Event, Request

Weights = TypeVar("Weights", contravariant=True)
Delta = TypeVar("Delta", contravariant=True)
Exported = TypeVar("Exported")


class Capabilities(Record, frozen=True):
    """What an engine can do."""

    max_versions: int
    """Most versions that may be resident at once."""
    exports_kv: bool
    """A live request can leave with its KV."""
    continues: bool
    """A request can start from tokens generated elsewhere."""
    is_batch_invariant: bool
    """Tokens and logprobs do not depend on the batch, preemption, migration or recomputation."""


class EngineLoad(Record, frozen=True):
    """What an engine carries now."""

    num_running: int
    num_waiting: int
    """Submitted or preempted, and without KV on the device."""
    num_held: int
    """Between turns, their KV kept."""
    kv_tokens: int
    """KV in use, in tokens of whole blocks."""
    kv_capacity: int
    num_preempted: int
    """Times a running request lost its place, since the engine began."""
    versions: tuple[int, ...]
    """Resident, oldest first."""


class Generates(Protocol):
    """Requests in, finished turns out."""

    def submit(self, request: Request) -> None:
        """Take a request; what is wrong with it becomes a Failed event."""
        ...

    def resume(self, request_id: int, tokens: tuple[int, ...]) -> None:
        """Append the environment's tokens to a held request and let it take its next turn."""
        ...

    def abort(self, request_id: int) -> None:
        """End a request; what it generated so far comes as a Finished event."""
        ...

    def finished(self) -> list[Event]:
        """What ended since the last call."""
        ...

    def load(self) -> EngineLoad:
        """A sign of life."""
        ...


class HoldsVersions(Protocol[Weights, Delta]):
    """Resident weight sets. A failed load leaves everything as it was."""

    def load_version(self, version: int, weights: Weights) -> None:
        """Make a version resident from a full set of weights."""
        ...

    def adopt_version(self, version: int, base: int, delta: Delta, *, keeps_base: bool = False) -> None:
        """Make a version resident as a change to another: in place where nothing uses that any more.

        With `keeps_base` beside it in any case.
        """
        ...

    def drop_version(self, version: int) -> None:
        """Free a version; refused while a request uses it."""
        ...


class Transfers(Protocol[Exported]):
    """Live requests that move between engines, with their KV."""

    def export_request(self, request_id: int) -> Exported:
        """Take a request out of this engine."""
        ...

    def import_request(self, exported: Exported) -> None:
        """Let a request go on here as it would have gone on there."""
        ...
