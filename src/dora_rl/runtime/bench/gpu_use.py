"""How much of the time a GPU was busy, as the driver counts it: a kernel ran, however small."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from shutil import which
from statistics import fmean
from threading import Thread
from typing import IO

_EVERY_MS = 100
_COMMAND = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", f"-lms={_EVERY_MS}")


class GpuUse:
    """Readings, each with its time on the monotonic clock."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, float]] = []

    def busy_share(self, begin: float, end: float) -> float | None:
        """Between two times; None where nothing was read."""
        shares = [share for at, share in self.readings if begin <= at <= end]
        return fmean(shares) if shares else None

    def read(self, lines: IO[str]) -> None:
        """Until there are no more; a line is the first GPU's use in per cent."""
        for line in lines:
            with suppress(ValueError):
                self.readings.append((time.monotonic(), float(line) / 100))


@contextmanager
def watched_gpu(is_wanted: bool) -> Iterator[GpuUse]:
    """Read while the block runs; nothing where there is no driver to ask."""
    use = GpuUse()
    if not is_wanted or which(_COMMAND[0]) is None:
        yield use
        return
    process = subprocess.Popen([*_COMMAND, "--id=0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    reader = Thread(target=use.read, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        yield use
    finally:
        process.terminate()
        process.wait()
        reader.join(timeout=5.0)
