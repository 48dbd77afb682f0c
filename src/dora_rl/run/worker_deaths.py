"""Deaths of workers: written down, told, counted, and too many of late are the end of the run."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dora_rl.core.errors import DoraError, UserError
from dora_rl.core.inputs import Fault
from dora_rl.core.recipe import Patience
from dora_rl.launch.messages import Broken
from dora_rl.store.errors import DiskFull

_LONGEST_PAUSE_S = 60.0
"""The longest a worker that dies again and again waits before it is started again, in seconds."""
_BY_ITSELF = ("exited with", "killed by SIGABRT")
"""Exits whose reason is in the log: a process killed from outside wrote nothing about it."""


class WorkerDied(DoraError):
    """A worker dies again and again, so the run cannot go on."""


class WorkerDeaths:
    """How often each worker died, in all and of late without a version published in between.

    One that dies again waits a while before it is started again, each time twice as long: what it needs may
    be away for a moment.
    """

    def __init__(self, patience: Patience, log: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience = patience
        self._log = log
        self._clock = clock
        self._recent: dict[str, list[float]] = {}
        """When each worker died since the last publish, and not too long ago."""
        self.total: Counter[str] = Counter()
        self._untold: list[tuple[str, str, bool]] = []

    def count(self, worker: str, reason: str, log: Path, *, is_needed: bool = True) -> float:
        """Count a death of a worker; returns after how many seconds it may be started again.

        Raises WorkerDied if it was one too many, unless the run goes on without this worker.
        """
        now = self._clock()
        self._recent[worker] = died_at = [*self._of_late(worker, now), now]
        times = len(died_at)
        is_over = is_needed and times >= self._patience.max_deaths
        pause_s = 0.0 if times == 1 else min(_LONGEST_PAUSE_S, 2.0 ** (times - 2))
        self.note(worker, reason, is_restarted=not is_over)
        if is_over:
            raise WorkerDied(
                f"{worker} died {times} times without a step in between; the last time it {reason}",
                hint=f"its last words are in {log}",
            )
        return pause_s

    def is_reliable(self, worker: str) -> bool:
        """Whether a worker has not died so often of late that it alone would end the run."""
        return len(self._of_late(worker, self._clock())) < self._patience.max_deaths

    def _of_late(self, worker: str, now: float) -> list[float]:
        """When a worker died, as far as that still counts."""
        return [at for at in self._recent.get(worker, ()) if now - at < self._patience.deaths_s]

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
        self._recent.clear()


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
    if broken.is_lasting:
        raise UserError(broken.message, hint=broken.hint)
    if broken.is_disk_full:
        raise DiskFull(broken.message, hint=broken.hint)
