"""What workers are told and what they say: frozen records in msgpack, tagged by their names.

A request is named by a number that no other Start of the run had, so a word about a request that was
meanwhile aborted, moved or started again can be told from one about its successor. What any worker may be
told or say is from `launch`.
"""

from msgspec import field

from dora_rl.core.fleet import InstanceSpec
from dora_rl.core.recipe.data import OrderConfig
from dora_rl.engines.requests import DrawnTokens, Request
from dora_rl.envs.prompt_source import GroupScore
from dora_rl.launch.messages import Alive as Alive
from dora_rl.launch.messages import Broken as Broken
from dora_rl.launch.messages import Message as Message
from dora_rl.launch.messages import Stop as Stop
from dora_rl.run.setup import RunSetup
from dora_rl.trainer.records import TrainGroup

# --- told to any worker -------------------------------------------------------------------------


class Begin(Message, frozen=True):
    """The first message."""

    setup: RunSetup
    store: str
    """The directory of published versions."""
    number: int = 0
    """Of this instance, or of this rank of the trainer."""
    stop_tokens: tuple[int, ...] = ()
    """That end a completion: told, because whoever reads them from a model directory takes seconds."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """What `object:LABEL` stands for in the recipe, by label: objects of the user's that no file has."""


# --- told to an instance ------------------------------------------------------------------------


class StartRequest(Message, frozen=True):
    """Start a request, or go on with one behind the tokens that exist already."""

    request: Request


class AbortRequest(Message, frozen=True):
    """Stop a request and free what it holds; nothing more is said of it."""

    request: int


class LoadVersion(Message, frozen=True):
    """Make a version resident, dropping others first."""

    version: int
    drop: tuple[int, ...] = ()


class DropVersion(Message, frozen=True):
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
    """Nobody trains on the device any more: generate again."""


InstanceCommand = (
    Begin
    | Stop
    | StartRequest
    | AbortRequest
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
    """This group belongs to the step of `batch`, whose other groups may come later."""

    batch: int
    group: TrainGroup


class AbandonStep(Message, frozen=True):
    """Forget the groups that were added since the last step."""


class TrainStep(Message, frozen=True):
    """Train on these groups, in this order, beside those that were added; then publish."""

    batch: int
    groups: tuple[TrainGroup, ...]
    is_replay: bool = False
    """The version this gives is public already: train again, publish nothing."""


class WriteCheckpoint(Message, frozen=True):
    """Write what the last step gave, unless it is written."""


class RetireVersion(Message, frozen=True):
    version: int


TrainerCommand = Begin | Stop | HandGroup | AbandonStep | TrainStep | WriteCheckpoint | RetireVersion

# --- said by an instance ------------------------------------------------------------------------


class InstanceReady(Message, frozen=True):
    """The engine is there; no version is resident yet."""

    spec: InstanceSpec
    pid: int


class VersionLoaded(Message, frozen=True):
    version: int
    load_s: float


class Report(Message, frozen=True):
    """What it carries, and what was drawn since the last report."""

    clock: float
    kv_tokens: int
    step_s: float
    is_pressed: bool = False
    """The KV is nearly full."""
    drawn: tuple[DrawnTokens, ...] = ()


class RequestEnded(Message, frozen=True):
    """The last tokens of a request."""

    drawn: DrawnTokens
    clock: float
    kv_tokens: int
    is_truncated: bool


class RequestRefused(Message, frozen=True):
    """The engine cannot carry out a request, or cannot take in one that moves here."""

    request: int
    reason: str


class RequestExported(Message, frozen=True):
    """It left, with its last tokens from here."""

    drawn: DrawnTokens
    kv_bytes: int


class RequestImported(Message, frozen=True):
    request: int


class DeviceLent(Message, frozen=True):
    """The instance decodes nothing, and its device may be trained on."""


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
    """It holds the weights of `version`, which are in the store."""

    version: int
    pid: int


class StepTrained(Message, frozen=True):
    """The weights of a step are computed; what is left is to make them durable."""

    batch: int


class StepPublished(Message, frozen=True):
    """The step that trained version `batch` is over, and version `batch + 1` is in the store."""

    batch: int
    train_s: float
    publish_s: float
    """From the end of training until the version was durable."""
    metrics: dict[str, float | None] = field(default_factory=dict)


class StepReplayed(Message, frozen=True):
    """A step whose version was public already was trained again."""

    batch: int
    num_different: int | None = None
    """Values that differ from those that were published; None where those are retired."""


class CheckpointWritten(Message, frozen=True):
    version: int
    directory: str


TrainerWord = Broken | Alive | TrainerReady | StepTrained | StepPublished | StepReplayed | CheckpointWritten

# --- said by the trainer's other ranks, to its first --------------------------------------------

RankWord = Broken | Alive

# --- told to and said by a source of prompts ----------------------------------------------------


class RowsOffered(Message, frozen=True):
    """Told: these rows will be started, in this order."""

    rows: tuple[int, ...]


class GroupScored(Message, frozen=True):
    """Told: what came of a group."""

    score: GroupScore


SourceTold = RowsOffered | GroupScored


class OpenSource(Message, frozen=True):
    """Told first: which source, over which rows, and everything it was told before."""

    order: OrderConfig
    prompts: str
    """The file of the run's prompts."""
    seed: int
    told: tuple[SourceTold, ...] = ()
    objects: dict[str, bytes] = field(default_factory=dict)
    """What `object:LABEL` stands for."""


class ChooseRows(Message, frozen=True):
    """Told: choose up to so many rows."""

    count: int


SourceCommand = OpenSource | ChooseRows | RowsOffered | GroupScored | Stop


class SourceReady(Message, frozen=True):
    """Said once it is imported and knows what it was told before."""


class RowsChosen(Message, frozen=True):
    """Said: the rows it chose; none for now, or None: never any again."""

    rows: tuple[int, ...] | None


SourceWord = Broken | Alive | SourceReady | RowsChosen
