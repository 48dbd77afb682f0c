"""Time on a device: what a phase of a step took there, without making the host wait in between."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Clock:
    """Marks in the order of the device's work, read when it is over. On the CPU, the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []

    def mark(self, phase: str) -> None:
        """What is done from here to the next mark is of this phase."""
        if self._is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((phase, event))
        else:
            self._marks.append((phase, time.perf_counter()))

    def phases(self) -> dict[str, float]:
        """Seconds of each phase since the last call, and forget them."""
        if self._is_cuda:
            torch.cuda.synchronize()
        totals: dict[str, float] = {}
        for (phase, begin), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            seconds = begin.elapsed_time(end) / 1e3 if self._is_cuda else end - begin
            totals[phase] = totals.get(phase, 0.0) + seconds
        self._marks.clear()
        return totals


def synchronised_s(device: torch.device) -> float:
    """The host's clock, once the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_bytes(device: torch.device) -> int:
    """Most memory held since `forget_peak`; 0 where it is not counted."""
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def forget_peak(device: torch.device) -> None:
    """Count from here. What is cached stays: taking it back would cost the next step its time."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def release(device: torch.device) -> None:
    """Give back what the last run held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def matmul_peak(device: torch.device, size: int | None = None) -> float:
    """Arithmetic a second of the best of several large bfloat16 products (float32 on the CPU)."""
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
def named(clock: Clock, phase: str) -> Iterator[None]:
    """A phase, and `other` after it."""
    clock.mark(phase)
    yield
    clock.mark("other")


def timed(clock: Clock, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its calls marked as a phase."""

    def call(*arguments: Any, **named_arguments: Any) -> Any:
        with named(clock, phase):
            return function(*arguments, **named_arguments)

    return call
