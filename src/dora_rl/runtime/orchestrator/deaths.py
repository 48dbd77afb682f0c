"""Deaths of workers: written down, counted, and too many in a row are the end of the run."""

import time
from collections import Counter
from pathlib import Path

from dora_rl.core.errors import DoraError, UserError
from dora_rl.runtime.messages import Broken
from dora_rl.store.errors import DiskFull


class WorkerDied(DoraError):
    """A worker dies again and again."""


class Deaths:
    """Who died how often, in all and since the last version was published."""

    def __init__(self, max_deaths: int, book: Path) -> None:
        self._max_deaths = max_deaths
        self._book = book
        self._in_a_row: Counter[str] = Counter()
        self.total: Counter[str] = Counter()

    def count(self, worker: str, reason: str, log: Path) -> None:
        """A worker died; WorkerDied if that was once too often."""
        self.note(worker, reason)
        self._in_a_row[worker] += 1
        if self._in_a_row[worker] >= self._max_deaths:
            times = self._in_a_row[worker]
            raise WorkerDied(
                f"{worker} died {times} times without a step in between; the last time it {reason}",
                hint=f"its last words are in {log}",
            )

    def note(self, worker: str, reason: str) -> None:
        """A worker died whose deaths others judge."""
        with self._book.open("a", encoding="utf-8") as book:
            book.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {worker} {reason}\n")
        self.total[worker] += 1

    def forgive(self) -> None:
        """A version was published: whoever died did not keep the run from going on."""
        self._in_a_row.clear()


def how_it_ended(exit_reason: str, last_words: str | None, log: Path) -> str:
    """In words: what it said itself, else what it left in its log."""
    lines = [] if last_words else log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = last_words or (lines[-1] if lines else None)
    return f"{exit_reason}: {said}" if said else exit_reason


def end_if_final(word: Broken) -> None:
    """What would break again in the same way ends the run at once."""
    if word.is_users:
        raise UserError(word.message, hint=word.hint)
    if word.is_disk_full:
        raise DiskFull(word.message, hint=word.hint)
