"""What an instance worker needs of an engine, no more: three small protocols and a statement of abilities.

Commands go in and events come out as plain data. A version comes from the version store; whether as a change
in place, as a copy or whole is for the engine to know, and so is what a live request looks like in a file.
Control asks an engine only for what its Abilities declare, and otherwise falls back: one version an instance,
prefill again, start again. Knows no torch and no process.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.requests import DrawnTokens, Event, Request
from dora_rl.model.config import ModelSizes

# --- what an engine says of itself --------------------------------------------------------------


class Abilities(Record, frozen=True):
    """What control may ask of an engine. Laws 1 to 4 hold without any of them, law 5 where they allow it."""

    max_versions: int = 1
    """Most versions that may be resident at once; with one, an instance is of one version at a time."""
    moves_kv: bool = False
    """Whether a live request can leave and enter with its KV; otherwise its target prefills it again."""
    continues: bool = False
    """Whether a request can start behind tokens generated elsewhere; otherwise it starts again."""
    holds_turns: bool = False
    """Whether a request can keep its KV between turns and be resumed."""
    parks_turns: bool = False
    """Whether KV of a request between turns moves to host memory on command: it is a ParksTurns."""
    keys_draws: bool = False
    """Whether a draw depends on the request's key and the position alone, not on batch or device."""
    is_batch_invariant: bool = False
    """Whether tokens and logprobs are independent of batch, preemption, migration and recomputation."""

    def instance_spec(self, limits: Limits, *, is_elastic: bool = False) -> InstanceSpec:
        """The record by which control knows an instance with this engine."""
        return InstanceSpec(
            slots=limits.max_running,
            kv_tokens=limits.num_blocks * limits.block_size,
            max_versions=self.max_versions,
            elastic=is_elastic,
            moves_kv=self.moves_kv,
            continues=self.continues,
            # What decodes is not parked on command: an engine preempts at the step that lacks a block, which
            # no report foresees.
            parks=False,
            host_kv_tokens=limits.num_host_blocks * limits.block_size if self.parks_turns else 0,
        )


class EngineLoad(Record, frozen=True):
    """The requests, KV and versions an engine carries now, and how fast it decodes."""

    num_running: int
    num_waiting: int
    """Number of requests that are submitted or preempted, without KV on the device."""
    num_held: int
    """Number of requests between turns, their KV kept."""
    kv_tokens: int
    """KV in use, in tokens of whole blocks."""
    kv_capacity: int
    num_preempted: int
    """How often a running request lost its place since the engine began."""
    versions: tuple[int, ...]
    """Resident versions, oldest first."""
    clock: float = 0.0
    """Decode rounds so far: a request that decodes without interruption gains one token a round."""
    round_s: float | None = None
    """Seconds of a decode round, as a running average; None before the first."""
    prefill_s: float = 0.0
    """Seconds since the engine began that went to computing prompts and environments' tokens."""
    recompute_s: float = 0.0
    """Seconds that went to computing KV once more that had been lost or left behind."""
    kv_moves_s: float = 0.0
    """Seconds that went to copying KV to host memory and back."""
    num_reused: int = 0
    """Tokens that were not prefilled since the engine began because another branch's KV was at hand."""
    pass_rows: float = 0.0
    """Requests whose decoding takes as long as a version's pass by itself; 0 where versions share one."""


# --- parking ------------------------------------------------------------------------------------


@runtime_checkable
class ParksTurns(Protocol):
    """An engine that takes the KV of requests between turns to host memory, where its abilities say so."""

    def park(self, request_id: int) -> None:
        """Take the KV of a held request off the device; `resume` brings it back, or computes it again.

        What is not between turns, or not here, stays as it is. Without room on the host the KV is dropped.
        """
        ...


# --- generating ---------------------------------------------------------------------------------


class Generates(Protocol):
    """Requests in, finished turns out. The worker calls `step` for as long as it gives True."""

    def submit(self, request: Request) -> None:
        """Take a request; what is wrong with it becomes a Failed event."""
        ...

    def resume(
        self,
        request_id: int,
        tokens: tuple[int, ...],
        max_new_tokens: int | None = None,
        stop_strings: tuple[str, ...] | None = None,
    ) -> None:
        """Append the environment's tokens to a held request and let it take its next turn.

        The turn draws at most `max_new_tokens`, and ends at one of `stop_strings`; None for what the turn
        before had.
        """
        ...

    def abort(self, request_id: int) -> None:
        """End a request; what it generated so far comes as a Finished event."""
        ...

    def request(self, request_id: int) -> Request:
        """A live request as it would be submitted to begin the turn it is in; between turns, the next."""
        ...

    def is_held(self, request_id: int) -> bool:
        """Whether a request is here, between turns."""
        ...

    def drawn(self, request_id: int, first: int = 0) -> DrawnTokens | None:
        """What a live request drew in this turn from its `first` token on; None if it is not here."""
        ...

    def finished(self) -> list[Event]:
        """Events of turns that ended since the last call."""
        ...

    def step(self) -> bool:
        """Run one step of the engine; False when there was nothing to do."""
        ...

    def rest(self) -> None:
        """Note that nothing will be generated for a while: that time is no part of a round.

        An engine may do meanwhile what a later step would wait for, a little with each call.
        """
        ...

    def load(self) -> EngineLoad:
        """The requests, KV and versions that the engine carries now, and how fast it decodes."""
        ...


# --- versions -----------------------------------------------------------------------------------


class VersionReader(Protocol):
    """The version store as engines see it; tensors are of torch, by the decoder's own names."""

    @property
    def directory(self) -> Path:
        """The directory of the version files, for an engine that reads them itself."""
        ...

    def fetch(self, version: int, device: str | None = None) -> Mapping[str, Any]:
        """Every tensor of a version, on a device; in host memory where none is named."""
        ...

    def fetch_delta(self, version: int, base: int, tensors: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The `model.delta` that turns the tensors of an older version into a newer; None: fetch it whole."""
        ...


class VersionLoad(Protocol):
    """A version on its way into an engine, which goes on generating meanwhile."""

    @property
    def version(self) -> int:
        """The version that is being loaded."""
        ...

    @property
    def is_read(self) -> bool:
        """Whether the version is read, so that finishing need not wait."""
        ...


class HoldsVersions(Protocol):
    """Loads and frees versions. A load that fails leaves every version not to be dropped as it was."""

    def begin_version(self, version: int, drop: Sequence[int] = ()) -> VersionLoad:
        """Begin to make a version resident in place of those to drop; one at a time."""
        ...

    def finish_version(self, load: VersionLoad) -> None:
        """Wait until the version is read and make it resident; a VersionError where that cannot be."""
        ...

    def drop_version(self, version: int) -> None:
        """Free a version; a VersionError while a request uses it."""
        ...


# --- moving -------------------------------------------------------------------------------------


class MovedOut(Record, frozen=True):
    """A request that left an engine into a file."""

    drawn: DrawnTokens
    """The tokens the request drew in its turn."""
    kv_bytes: int
    """Bytes of the file; 0 where it could not be written, and the KV is computed again at the target."""


class Transfers(Protocol):
    """Live requests that move between engines with their KV; asked for where `moves_kv` is declared."""

    def export_file(self, request_id: int, path: Path) -> MovedOut:
        """Take a request out of this engine and write it to a file."""
        ...

    def import_file(self, request_id: int, path: Path) -> DrawnTokens:
        """Let a request from a file go on under a new number as it would have; returns its turn so far.

        An EngineError, and nothing changed, where it cannot.
        """
        ...


class Engine(Generates, HoldsVersions, Transfers, Protocol):
    """Everything an instance worker asks of an engine."""

    @property
    def abilities(self) -> Abilities:
        """What control may ask of this engine."""
        ...


# --- kinds --------------------------------------------------------------------------------------


class EngineDemand(Record, frozen=True):
    """What an engine is sized by: the run's wishes, and the memory left for one instance."""

    model: ModelSizes
    recipe: Recipe
    device: str
    """The kind of device: `cpu` or `cuda`."""
    num_instances: int
    free_bytes: int
    """Bytes free on the device for this instance alone."""
    longest_prompt: int
    max_new_tokens: int
    num_threads: int = 1
    """Threads the engine will use; each has a workspace of its own on a CPU."""
    free_host_bytes: int | None = None
    """Bytes of host memory this instance may have; None where the host is the device."""
    note: str = ""
    """Why there is no more memory, in words that end a sentence."""


class EngineSize(Record, frozen=True):
    """An engine as it will be opened, and the memory it will hold."""

    config: EngineConfig
    versions_bytes: int
    kv_bytes: int
    workspace_bytes: int
    host_kv_bytes: int


class EngineOpening(Record, frozen=True):
    """What an engine is opened with, in the process of its instance."""

    config: EngineConfig
    model: Path
    """The Hugging Face directory of the model."""
    versions: VersionReader
    device: str = "cpu"
    """The device of the instance: `cpu` or `cuda:i`."""
    num_threads: int = 1
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end a completion of this model."""
    tokenizer: Path | None = None
    """Path of a `tokenizer.json`, where responses end at stop strings."""


class EngineKind(Protocol):
    """A way to make engines, chosen by `engine.kind` in the recipe."""

    def size(self, demand: EngineDemand) -> EngineSize:
        """Size an engine, in the process that prepares the run; a NoRoom error if none fits."""
        ...

    def open(self, opening: EngineOpening) -> Engine:
        """Open an engine, in the process of its instance; no version is resident yet."""
        ...
