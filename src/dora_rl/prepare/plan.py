"""A plan: a live run, sized and counted, before any of it exists. Plain data; torch-free."""

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.run.setup import LiveSetup


class Entry(Record, frozen=True):
    """A line of a ledger."""

    place: str
    """A device, or the disk."""
    what: str
    num_bytes: int
    is_estimate: bool = False
    """Depends on what comes; the others are exact."""


class Place(Record, frozen=True):
    """A device and how much of it may be used."""

    name: str
    num_bytes: int
    note: str = ""
    """That others use some of it."""


class RunPlan(Record, frozen=True):
    """Everything `--dry-run` shows and a run needs."""

    recipe: Recipe
    setup: LiveSetup
    num_parameters: int
    num_rows: int
    num_held_out: int
    num_overlong: int
    """Rows to train on that are left out because their prompts are too long."""
    num_overlong_held_out: int
    longest_prompt_tokens: int
    places: tuple[Place, ...]
    memory: tuple[Entry, ...]
    disk: tuple[Entry, ...]
    free_disk_bytes: int

    @property
    def disk_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self.disk)

    def used_bytes(self, place: str) -> int:
        return sum(entry.num_bytes for entry in self.memory if entry.place == place)
