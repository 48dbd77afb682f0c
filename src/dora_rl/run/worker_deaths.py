"""Deaths of workers: written down, told, counted, and too many in a row are the end of the run."""

import time
from collections import Counter
from pathlib import Path

from dora_rl.core.errors import DoraError, UserError
from dora_rl.core.inputs import Fault
from dora_rl.launch.messages import Broken
from dora_rl.store.errors import DiskFull

_BY_ITSELF = ("exited with", "killed by SIGABRT")
"""A process that was killed from outside said nothing of it: its last line is about something else."""


class WorkerDied(DoraError):
    """A worker dies again and again."""


class WorkerDeaths:
    """Who died how often, in all and since the last version was published."""

    def __init__(self, max_deaths: int, log: Path) -> None:
        self._max_deaths = max_deaths
        self._log = log
        self._in_a_row: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self._untold: list[tuple[str, str, bool]] = []

    def count(self, worker: str, reason: str, log: Path) -> None:
        """A worker died; WorkerDied if that was once too often."""
        self._in_a_row[worker] += 1
        is_over = self._in_a_row[worker] >= self._max_deaths
        self.note(worker, reason, is_restarted=not is_over)
        if is_over:
            times = self._in_a_row[worker]
            raise WorkerDied(
                f"{worker} died {times} times without a step in between; the last time it {reason}",
                hint=f"its last words are in {log}",
            )

    def note(self, worker: str, reason: str, *, is_restarted: bool = True) -> None:
        """A worker died whose deaths others judge."""
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {worker} {reason}\n")
        self.total[worker] += 1
        self._untold.append((worker, reason, is_restarted))

    def faults(self, at: float) -> list[Fault]:
        """Deaths that the event log does not have yet."""
        untold, self._untold = self._untold, []
        return [
            Fault(at=at, worker=worker, reason=reason, is_restarted=is_restarted)
            for worker, reason, is_restarted in untold
        ]

    def forgive(self) -> None:
        """A version was published: whoever died did not keep the run from going on."""
        self._in_a_row.clear()


def how_it_ended(exit_reason: str, last_words: str | None, log: Path) -> str:
    """In words: what it said itself, else what it left in its log if it ended by itself with an error."""
    is_error = exit_reason.startswith(_BY_ITSELF) and exit_reason != "exited with 0"
    said = last_words or (_last_line(log) if is_error else None)
    return f"{exit_reason}: {said}" if said else exit_reason


def _last_line(log: Path) -> str | None:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else None


def end_if_final(broken: Broken) -> None:
    """What would break again in the same way ends the run at once."""
    if broken.is_users:
        raise UserError(broken.message, hint=broken.hint)
    if broken.is_disk_full:
        raise DiskFull(broken.message, hint=broken.hint)
