"""Time on a device: the phases of a train step and its longest kernels; the host does not wait in between."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dora_rl.bench.device import synchronised_s
from dora_rl.core.record import Record


class PhaseClock:
    """Times the phases of work on a device by marks in its stream; on the CPU by the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []

    def mark(self, phase: str) -> None:
        """Count the work from here to the next mark to this phase."""
        if self._is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((phase, event))
        else:
            self._marks.append((phase, time.perf_counter()))

    def phases(self) -> dict[str, float]:
        """Return the seconds of each phase since the last call."""
        if self._is_cuda:
            torch.cuda.synchronize()
        totals: dict[str, float] = {}
        for (phase, begin), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            seconds = begin.elapsed_time(end) / 1e3 if self._is_cuda else end - begin
            totals[phase] = totals.get(phase, 0.0) + seconds
        self._marks.clear()
        return totals


def peak_bytes(device: torch.device) -> int:
    """Most bytes of memory held since `forget_peak`; 0 where they are not counted."""
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def forget_peak(device: torch.device) -> None:
    """Count peak memory from here; what is cached stays, as freeing it would slow the next step."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def release(device: torch.device) -> None:
    """Give back the memory that the last run held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def matmul_peak(device: torch.device, size: int | None = None) -> float:
    """Operations a second of the best of several large bfloat16 products (float32 on the CPU)."""
    size = size or (8192 if device.type == "cuda" else 512)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = 0.0
    for _ in range(5):
        started_s = synchronised_s(device)
        for _ in range(10):
            left @ right
        best = max(best, 10 * 2 * size**3 / (synchronised_s(device) - started_s))
    return best


@contextmanager
def named(clock: PhaseClock, phase: str) -> Iterator[None]:
    """Mark the block as a phase, and `other` after it."""
    clock.mark(phase)
    yield
    clock.mark("other")


def timed(clock: PhaseClock, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its calls marked as a phase."""

    def call(*arguments: Any, **named_arguments: Any) -> Any:
        with named(clock, phase):
            return function(*arguments, **named_arguments)

    return call


class KernelTime(Record, frozen=True):
    """The time of all calls of one kernel in one step."""

    name: str
    total_s: float
    count: int


def kernels_of(run: Callable[[], object], device: torch.device, *, most: int = 25) -> tuple[KernelTime, ...]:
    """The kernels of one run that took longest; operators on the CPU."""
    is_cuda = device.type == "cuda"
    activity = ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU
    # Some versions of torch warn that events of earlier cycles are lost, although there is one cycle only.
    with profile(activities=[activity], acc_events=True) as profiled:
        run()
        if is_cuda:
            torch.cuda.synchronize()
    found = [
        KernelTime(
            name=each.key,
            total_s=(each.self_device_time_total if is_cuda else each.self_cpu_time_total) / 1e6,
            count=each.count,
        )
        for each in profiled.key_averages()
    ]
    return tuple(sorted(found, key=lambda kernel: -kernel.total_s)[:most])
