"""Deaths of workers: counted, and too many in a row are the end of the run."""

from collections import Counter
from pathlib import Path

from dora_rl.core.errors import DoraError, UserError
from dora_rl.runtime.messages import Broken


class WorkerDied(DoraError):
    """A worker dies again and again."""


class Deaths:
    """Who died how often, in all and since the last version was published."""

    def __init__(self, max_deaths: int) -> None:
        self._max_deaths = max_deaths
        self._in_a_row: Counter[str] = Counter()
        self.total: Counter[str] = Counter()

    def count(self, worker: str, reason: str, log: Path) -> None:
        """A worker died; WorkerDied if that was once too often."""
        self.total[worker] += 1
        self._in_a_row[worker] += 1
        if self._in_a_row[worker] >= self._max_deaths:
            times = self._in_a_row[worker]
            raise WorkerDied(
                f"{worker} died {times} times without a step in between; the last time it {reason}",
                hint=f"its last words are in {log}",
            )

    def forgive(self) -> None:
        """A version was published: whoever died did not keep the run from going on."""
        self._in_a_row.clear()


def refuse_users_mistake(word: Broken) -> None:
    """What would break again in the same way ends the run at once."""
    if word.is_users:
        raise UserError(word.message, hint=word.hint)
