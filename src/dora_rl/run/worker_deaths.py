"""Deaths of workers: written down, told, counted, and too many in a row are the end of the run."""

import time
from collections import Counter
from pathlib import Path

from dora_rl.core.errors import DoraError, UserError
from dora_rl.core.inputs import Fault
from dora_rl.launch.messages import Broken
from dora_rl.store.errors import DiskFull

_BY_ITSELF = ("exited with", "killed by SIGABRT")
"""Exits whose reason is in the log: a process killed from outside wrote nothing about it."""


class WorkerDied(DoraError):
    """A worker dies again and again, so the run cannot go on."""


class WorkerDeaths:
    """How often each worker died, in all and since the last version was published."""

    def __init__(self, max_deaths: int, log: Path) -> None:
        self._max_deaths = max_deaths
        self._log = log
        self._in_a_row: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self._untold: list[tuple[str, str, bool]] = []

    def count(self, worker: str, reason: str, log: Path) -> None:
        """Count a death of a worker; raises WorkerDied if it was one too many in a row."""
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
        """Write a death down without counting it in a row: whoever owns the worker judges that."""
        self.write_down(f"{worker} {reason}")
        self.total[worker] += 1
        self._untold.append((worker, reason, is_restarted))

    def write_down(self, text: str) -> None:
        """Append a line with the time to the orchestrator's log."""
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def faults(self, at: float) -> list[Fault]:
        """Deaths that the event log does not have yet, as its records."""
        untold, self._untold = self._untold, []
        return [
            Fault(at=at, worker=worker, reason=reason, is_restarted=is_restarted)
            for worker, reason, is_restarted in untold
        ]

    def forgive(self) -> None:
        """Begin counting deaths in a row anew: a version was published, so the run goes on."""
        self._in_a_row.clear()


def how_it_ended(exit_reason: str, last_words: str | None, log: Path) -> str:
    """Why a worker ended, in words: its last words, else the last line of its log if it failed by itself."""
    is_error = exit_reason.startswith(_BY_ITSELF) and exit_reason != "exited with 0"
    said = last_words or (_last_line(log) if is_error else None)
    return f"{exit_reason}: {said}" if said else exit_reason


def _last_line(log: Path) -> str | None:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else None


def end_if_final(broken: Broken) -> None:
    """Raise if a worker broke in a way that would only repeat itself, and so ends the run at once."""
    if broken.is_users:
        raise UserError(broken.message, hint=broken.hint)
    if broken.is_disk_full:
        raise DiskFull(broken.message, hint=broken.hint)
