"""How much of the time a GPU was busy, and the processor time of this process and everything it started.

Hopper and later count a GPU's use in hardware, which NVML reads (`nvidia-ml-py`). Elsewhere it is what
`nvidia-smi` samples: over a run the two agree within a point or so, a single reading of it says little.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which
from statistics import fmean
from types import ModuleType
from typing import IO

_COUNTED_EVERY_S = 0.25
_SAMPLED_EVERY_MS = 100
_COMMAND = (
    *("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"),
    f"-lms={_SAMPLED_EVERY_MS}",
)


class GpuUse:
    """Readings of the first GPU that torch sees, each with its time on the monotonic clock."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, float]] = []

    def busy_share(self, begin: float, end: float) -> float | None:
        """Mean share of the time from `begin` to `end` in which the GPU was busy; None without readings."""
        shares = [share for at, share in self.readings if begin <= at <= end]
        return fmean(shares) if shares else None

    def put(self, share: float) -> None:
        """Add a reading: the share of the time since the last one in which the GPU was busy."""
        self.readings.append((time.monotonic(), share))


@contextmanager
def watched_gpu(is_wanted: bool) -> Iterator[GpuUse]:
    """Read the GPU's use while the block runs; no readings where nothing can measure it."""
    use = GpuUse()
    if not is_wanted:
        yield use
    elif (count := opened_counter(_nvml())) is not None:
        with _counting(count, use):
            yield use
    elif which(_COMMAND[0]) is not None:
        with _sampling(use):
            yield use
    else:
        yield use


def opened_counter(nvml: ModuleType | None) -> Callable[[], float | None] | None:
    """The function that returns how busy the GPU was since its last call; None if it is not counted."""
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
        name = _first_gpu()
        device = (
            nvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdigit()
            else nvml.nvmlDeviceGetHandleByUUID(name)
        )
        if not nvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice:
            return None
        samples = [nvml.nvmlGpmSampleGet(device, nvml.nvmlGpmSampleAlloc()) for _ in range(2)]
    except (nvml.NVMLError, AttributeError):  # The latter from a library that is older than the counters.
        return None

    def count() -> float | None:
        samples.reverse()
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
        asked.sample1, asked.sample2 = samples
        asked.metrics[0].metricId = nvml.NVML_GPM_METRIC_GRAPHICS_UTIL
        with suppress(nvml.NVMLError):
            nvml.nvmlGpmSampleGet(device, samples[1])
            nvml.nvmlGpmMetricsGet(asked)
            if asked.metrics[0].nvmlReturn == nvml.NVML_SUCCESS:
                return float(asked.metrics[0].value) / 100
        return None

    return count


def _first_gpu() -> str:
    """Number or UUID, among all of the machine's, of the first GPU that torch sees."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"


def _nvml() -> ModuleType | None:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml  # type: ignore[no-any-return]


@contextmanager
def _counting(count: Callable[[], float | None], use: GpuUse) -> Iterator[None]:
    is_over = threading.Event()

    def read() -> None:
        while not is_over.wait(_COUNTED_EVERY_S):
            if (share := count()) is not None:
                use.put(share)

    reader = threading.Thread(target=read, name="GPU use", daemon=True)
    reader.start()
    try:
        yield
    finally:
        is_over.set()
        reader.join()


@contextmanager
def _sampling(use: GpuUse) -> Iterator[None]:
    process = subprocess.Popen([*_COMMAND, f"--id={_first_gpu()}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None

    def read(lines: IO[str]) -> None:
        """A line is the use in per cent."""
        for line in lines:
            with suppress(ValueError):
                use.put(float(line) / 100)

    reader = threading.Thread(target=read, args=(process.stdout,), name="GPU use", daemon=True)
    reader.start()
    try:
        yield
    finally:
        process.terminate()
        process.wait()
        reader.join(timeout=5.0)


_PROC = Path("/proc")


def used_s() -> float | None:
    """Processor seconds so far of this process and those it started that live; None where unknown."""
    if not (_PROC / "self" / "stat").exists():
        return None
    found = dict(filter(None, map(_read, _PROC.glob("[0-9]*/stat"))))
    parents = {pid: parent for pid, (parent, _) in found.items()}
    ours = (ticks for pid, (_, ticks) in found.items() if _is_below(pid, os.getpid(), parents))
    return sum(ours) / os.sysconf("SC_CLK_TCK")


def _read(stat: Path) -> tuple[int, tuple[int, int]] | None:
    """Process id, parent id and ticks of a process; None if it is gone."""
    try:
        # The name, in parentheses, may hold anything.
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(stat.parent.name), (int(fields[1]), int(fields[11]) + int(fields[12]))


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid != root:
        if pid not in parents:
            return False
        pid = parents[pid]
    return True
