"""What the preparing worker is told and says. Torch-free."""

from collections.abc import Callable

from msgspec import field

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.launch.messages import Alive, Broken, Message, Stop
from dora_rl.prepare.plan import RunPlan

# --- told ---


class Given(Record, frozen=True):
    """What names of the form `object:LABEL` in a recipe stand for, as a caller in Python gave it."""

    objects: dict[str, bytes] = field(default_factory=dict)
    """Functions by label, packed by cloudpickle; one that is missing stays with the caller, who checks it."""
    tables: dict[str, str] = field(default_factory=dict)
    """Files with rows, by the whole name."""
    model: str | None = None
    """A Hugging Face directory that goes when the caller does."""


class PlanRun(Message, frozen=True):
    """Look at everything that a recipe names, and answer with Planned."""

    recipe: Recipe
    run_directory: str
    given: Given = Given()


class WriteInputs(Message, frozen=True):
    """Leave what the planned run begins with in a directory, and answer with InputsWritten."""

    directory: str


PrepareCommand = PlanRun | WriteInputs | Stop

# --- said ---


class Doing(Message, frozen=True):
    """A piece of the work begins, or is further than it was."""

    what: str
    """In words that go on from "while": "importing judge.py"."""
    limit: tuple[str, float] | None = None
    """The recipe's name for how many seconds it may take until it ends or is further, and how many."""
    hint: str | None = None
    """What to do if it does not end well, where it is the user's code."""
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.what}: {self.done}/{self.total}" if self.total else self.what


Report = Callable[[Doing], None]
"""Told by whoever works what is being done."""


class Planned(Message, frozen=True):
    """The recipe can be run, and how."""

    plan: RunPlan


class InputsWritten(Message, frozen=True):
    """Everything is where it was wanted."""


PrepareWord = Broken | Alive | Doing | Planned | InputsWritten
