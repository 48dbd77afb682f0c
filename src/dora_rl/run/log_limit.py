"""Logs of workers do not grow for ever: one that is too large begins anew, and its end stays beside it.

Workers append to the files themselves, so one may be emptied under them. What is printed in the moment
between the copy and that is lost.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_EVERY_S = 1.0


class LogLimit:
    """Looks after every `*.log` of a directory; what a log said before it began anew is in `NAME.log.1`."""

    def __init__(
        self, logs: Path, *, max_bytes: int = 8 * 2**20, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """A log of more than `max_bytes` begins anew; as much of its end is kept."""
        self._logs = logs
        self._max_bytes = max_bytes
        self._clock = clock
        self._look_at = clock()

    def look(self) -> None:
        """Begin logs anew that have grown too large; looks at most once a second."""
        if self._clock() < self._look_at:
            return
        self._look_at = self._clock() + _LOOK_EVERY_S
        for log in self._logs.glob("*.log"):
            if log.stat().st_size > self._max_bytes:
                self._begin_anew(log)

    def _begin_anew(self, log: Path) -> None:
        kept = log.with_name(f"{log.name}.1")
        with log.open("r+b") as file:
            file.seek(-self._max_bytes, os.SEEK_END)
            kept.write_bytes(file.read(self._max_bytes))
            file.truncate(0)
        with log.open("a", encoding="utf-8") as file:
            at, size = time.strftime("%Y-%m-%d %H:%M:%S"), f"{self._max_bytes / 2**20:g} MiB"
            file.write(f"{at} this log had more than {size}: the last {size} are in {kept.name}\n")
