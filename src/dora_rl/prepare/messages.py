"""Messages to and from the preparing worker. Torch-free."""

from collections.abc import Callable

from msgspec import field

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.launch.messages import Alive, Broken, Message, Stop
from dora_rl.prepare.cluster_devices import ClusterDevices
from dora_rl.prepare.run_plan import RunPlan
from dora_rl.run.run_setup import RunSetup

# --- told ---


class Given(Record, frozen=True):
    """Objects a caller in Python gave in place of names: what `object:LABEL` in the recipe stands for."""

    objects: dict[str, bytes] = field(default_factory=dict)
    """Functions packed by cloudpickle, by label; one that is missing stays with the caller, who checks it."""
    tables: dict[str, str] = field(default_factory=dict)
    """Files with rows, by the whole name `object:LABEL` that stands for them in the recipe."""
    model: str | None = None
    """The Hugging Face directory of a model given in memory, deleted when the caller is done; else None."""


class PlanRun(Message, frozen=True):
    """Look at everything that a recipe names, and answer with Planned."""

    recipe: Recipe
    run_directory: str
    given: Given = Given()
    cluster: ClusterDevices | None = None
    """What the run's workers will have, if that is not this machine."""


class PrepareSampling(Message, frozen=True):
    """Leave in a directory what sampling from a model begins with, and answer with SamplingPrepared."""

    recipe: Recipe
    directory: str
    given: Given
    is_judged: bool
    """Whether rewards judge the samples."""


class PrepareServing(Message, frozen=True):
    """Leave in a directory what serving a model begins with, and answer with ServingPrepared."""

    recipe: Recipe
    directory: str
    context_tokens: int | None
    """Most tokens of a conversation; None for as many as the model has, within reason."""
    run: str | None = None
    """The directory of the run whose newest version is served; None for the model's own weights."""


class TakeNewest(Message, frozen=True):
    """Add the run's newest version to those that are served, if it is new; answered with NewestTaken."""


class WriteInputs(Message, frozen=True):
    """Leave what the planned run begins with in a directory, and answer with InputsWritten."""

    directory: str


PrepareCommand = PlanRun | PrepareSampling | PrepareServing | TakeNewest | WriteInputs | Stop

# --- said ---


class Doing(Message, frozen=True):
    """A piece of the preparation begins, or is further than it was."""

    what: str
    """The piece of work, in words that follow "while": "importing judge.py"."""
    limit: tuple[str, float] | None = None
    """The recipe key and the seconds of the limit within which this piece must end or get further."""
    hint: str | None = None
    """What the user can do if this piece fails or hangs, where it runs the user's code."""
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.what}: {self.done}/{self.total}" if self.total else self.what


Report = Callable[[Doing], None]
"""A function that is told what is being done."""


class Planned(Message, frozen=True):
    """The recipe can be run, and the plan says how."""

    plan: RunPlan


class InputsWritten(Message, frozen=True):
    """Everything the planned run begins with is in the directory asked for."""


class SamplingPrepared(Message, frozen=True):
    """Everything that sampling begins with is in the directory asked for."""

    setup: RunSetup


class TakenVersion(Record, frozen=True):
    """A version that can be served."""

    number: int
    """Its number among those that are served."""
    run_version: int | None
    """Its number in its run; None where it is of no run."""


class ServingPrepared(Message, frozen=True):
    """Everything that serving begins with is in the directory asked for."""

    setup: RunSetup
    stop_tokens: tuple[int, ...]
    version: TakenVersion


class NewestTaken(Message, frozen=True):
    """The run's newest version can be served; None if it could before."""

    version: TakenVersion | None


PrepareWord = (
    Broken | Alive | Doing | Planned | InputsWritten | SamplingPrepared | ServingPrepared | NewestTaken
)
