"""What workers are told and what they say: frozen records in msgpack, tagged by their names.

A request is named by a number that no other Start of the run had, so a word about a request that was
meanwhile aborted, moved or started again can be told from one about its successor. What any worker may be
told or say is from `launch`.
"""

from msgspec import field

from dora_rl.core.instance_seconds import InstanceSeconds
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.turn_finish import TurnFinish
from dora_rl.engines.requests import DrawnTokens, Request
from dora_rl.launch.messages import Alive as Alive
from dora_rl.launch.messages import Broken as Broken
from dora_rl.launch.messages import Message as Message
from dora_rl.launch.messages import Stop as Stop
from dora_rl.run.run_setup import RunSetup
from dora_rl.trainer.train_batch import TrainGroup

# --- told to any worker -------------------------------------------------------------------------


class Begin(Message, frozen=True):
    """The first message to an instance or to a rank of the trainer: the whole set-up of its run."""

    setup: RunSetup
    store: str
    """The directory of published versions."""
    epoch: int = 0
    """The epoch of who leads the run; what is written to it under a lower one is refused."""
    number: int = 0
    """The number of the instance, or of the trainer's rank, that is told to begin."""
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end a completion; sent because reading them from a model directory takes seconds."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """The user's own objects for the names `object:LABEL` in the recipe: cloudpickle bytes by label."""


# --- told to an instance ------------------------------------------------------------------------


class StartRequest(Message, frozen=True):
    """Start a request, or go on with one behind the tokens that exist already."""

    request: Request


class ResumeRequest(Message, frozen=True):
    """Append the environment's tokens to a request that is held between turns, and take its next turn."""

    request: int
    tokens: tuple[int, ...]
    max_new_tokens: int
    """Most tokens of the turn that begins."""
    stop_strings: tuple[str, ...] = ()
    """Strings at which the turn ends."""


class AbortRequest(Message, frozen=True):
    """Stop a request, held between turns or not, and free what it holds; nothing more is said of it."""

    request: int


class ParkRequest(Message, frozen=True):
    """Take the KV of a request that is held between turns to host memory, until it is resumed."""

    request: int


class LoadVersion(Message, frozen=True):
    """Make a version resident, dropping others first."""

    version: int
    drop: tuple[int, ...] = ()


class DropVersion(Message, frozen=True):
    """Free the weights of a resident version."""

    version: int


class ExportRequest(Message, frozen=True):
    """Take a request out, with its KV into a file or without."""

    request: int
    path: str | None


class ImportRequest(Message, frozen=True):
    """Go on with a request from a file; `request` is its new number."""

    request: int
    path: str


class InterruptAll(Message, frozen=True):
    """Drop all KV and all versions but this one, and go on with everything under it."""

    version: int


class LendDevice(Message, frozen=True):
    """Generate nothing until the device returns: others train on it."""


class ReturnDevice(Message, frozen=True):
    """Generate again: nobody trains on the device any more."""


InstanceCommand = (
    Begin
    | Stop
    | StartRequest
    | ResumeRequest
    | AbortRequest
    | ParkRequest
    | LoadVersion
    | DropVersion
    | ExportRequest
    | ImportRequest
    | InterruptAll
    | LendDevice
    | ReturnDevice
)

# --- told to the trainer ------------------------------------------------------------------------


class HandGroup(Message, frozen=True):
    """Take in one group of the step of `batch`; the step's other groups may come later."""

    batch: int
    group: TrainGroup


class AbandonStep(Message, frozen=True):
    """Forget the groups that were taken in since the last step."""


class TrainStep(Message, frozen=True):
    """Train on these groups, in this order, beside those taken in already; then publish the new version."""

    batch: int
    groups: tuple[TrainGroup, ...]
    is_replay: bool = False
    """Whether the version this step gives is public already: train again, publish nothing."""


class WriteCheckpoint(Message, frozen=True):
    """Write a checkpoint of the last step's version, unless it is written."""


class RetireVersion(Message, frozen=True):
    """Delete a version from the store: nobody needs it any more."""

    version: int


TrainerCommand = Begin | Stop | HandGroup | AbandonStep | TrainStep | WriteCheckpoint | RetireVersion

# --- said by an instance ------------------------------------------------------------------------


class InstanceReady(Message, frozen=True):
    """An instance's engine is open; no version is resident yet."""

    spec: InstanceSpec
    pid: int


class VersionLoaded(Message, frozen=True):
    """A version is resident, and generates; `load_s` is how long loading took."""

    version: int
    load_s: float


class Report(Message, frozen=True):
    """An instance's load, and the tokens drawn since its last report."""

    clock: float
    kv_tokens: int
    step_s: float
    is_pressed: bool = False
    """Whether the KV cache is nearly full."""
    drawn: tuple[DrawnTokens, ...] = ()
    seconds: InstanceSeconds = InstanceSeconds()
    """The seconds since the instance's engine was opened in which something else held decoding up."""


class RequestEnded(Message, frozen=True):
    """A turn of a request is over: its last tokens, and the instance's load after it."""

    drawn: DrawnTokens
    clock: float
    kv_tokens: int
    finish: TurnFinish
    is_held: bool = False
    """Whether the instance keeps the KV and waits for `ResumeRequest` or `AbortRequest`."""

    @property
    def is_truncated(self) -> bool:
        """Whether the turn was cut at its length."""
        return self.finish == "length"


class RequestRefused(Message, frozen=True):
    """The engine cannot carry out a request, or cannot take in one that moves here."""

    request: int
    reason: str


class RequestExported(Message, frozen=True):
    """A request left its instance: the last tokens drawn there, and the bytes of KV in its file."""

    drawn: DrawnTokens
    kv_bytes: int


class RequestImported(Message, frozen=True):
    """A request that moved here with its KV is taken in and goes on."""

    request: int


class DeviceLent(Message, frozen=True):
    """The instance decodes nothing now, and its device may be trained on."""


class DeviceReturned(Message, frozen=True):
    """The instance generates again."""


InstanceWord = (
    Broken
    | Alive
    | InstanceReady
    | VersionLoaded
    | Report
    | RequestEnded
    | RequestRefused
    | RequestExported
    | RequestImported
    | DeviceLent
    | DeviceReturned
)

# --- said by the trainer ------------------------------------------------------------------------


class TrainerReady(Message, frozen=True):
    """The trainer holds the weights of `version`, which are in the store."""

    version: int
    pid: int
    damaged: tuple[str, ...] = ()
    """What is wrong with each newer checkpoint, which could not be used."""
    newest: int = 0
    """The newest version in the store."""


class StepTrained(Message, frozen=True):
    """The weights of a step are computed; what is left is to make them durable."""

    batch: int


class StepPublished(Message, frozen=True):
    """The step that trained version `batch` is over, and version `batch + 1` is in the store."""

    batch: int
    train_s: float
    publish_s: float
    """Seconds from the end of training until the version was durable."""
    ahead_s: float = 0.0
    """Seconds of `train_s` that went to groups handed over before the step was sent."""
    metrics: dict[str, float | None] = field(default_factory=dict)


class StepReplayed(Message, frozen=True):
    """A step whose version was public already was trained again."""

    batch: int
    num_different: int | None = None
    """Weights that differ from the published ones; None where that version is retired."""


class CheckpointWritten(Message, frozen=True):
    """A checkpoint of `version` is durable in `directory`."""

    version: int
    directory: str
    oldest: int
    """The oldest version that training could be started from: a kept checkpoint's, or 0."""


TrainerWord = Broken | Alive | TrainerReady | StepTrained | StepPublished | StepReplayed | CheckpointWritten

# --- said by the trainer's other ranks, to its first --------------------------------------------

RankWord = Broken | Alive
