"""A plan: a live run, sized and counted, before any of it exists. Plain data; torch-free."""

from dora_rl.core.record import Record
from dora_rl.run.run_setup import RunSetup


class LedgerEntry(Record, frozen=True):
    """What one thing takes of the memory of a device, or of the disk."""

    place: str
    """The device whose memory is used, or the disk."""
    what: str
    num_bytes: int
    is_estimate: bool = False
    """Whether the size depends on what the run meets; otherwise it is exact."""


class MemoryLimit(Record, frozen=True):
    """A device, and how many bytes of its memory the run may use."""

    name: str
    num_bytes: int
    note: str = ""
    """Words for errors about others who use some of this memory; empty where nobody does."""


class RunPlan(Record, frozen=True):
    """A planned run: everything `--dry-run` shows and a run needs."""

    setup: RunSetup
    computing_note: str
    """Who computes the model, and why; empty where it is the native decoder."""
    num_parameters: int
    num_rows: int
    num_held_out: int
    num_overlong: int
    """Rows to train on that are left out because their prompts are too long."""
    num_overlong_held_out: int
    longest_prompt_tokens: int
    places: tuple[MemoryLimit, ...]
    memory: tuple[LedgerEntry, ...]
    disk: tuple[LedgerEntry, ...]
    free_disk_bytes: int

    @property
    def disk_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self.disk)

    def used_bytes(self, place: str) -> int:
        return sum(entry.num_bytes for entry in self.memory if entry.place == place)
