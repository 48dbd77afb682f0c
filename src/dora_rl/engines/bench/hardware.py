"""What the device itself can do, measured beside the engine: a copy, and one large product."""

import time
from collections.abc import Callable

import torch

from dora_rl.engines.bench.roofline import Hardware

_COPY_BYTES = {"cuda": 2**31, "cpu": 2**27}
_MATRIX_SIZE = {"cuda": 8192, "cpu": 1024}


def measure_hardware(device: str, dtype: torch.dtype) -> Hardware:
    """The best of a few tries."""
    source = torch.zeros(_COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source), device)
    size = _MATRIX_SIZE[device]
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    product_s = _best_s(lambda: left @ right, device)
    return Hardware(bytes_s=2 * _COPY_BYTES[device] / copy_s, flops=2.0 * size**3 / product_s)


def synchronise(device: str) -> None:
    """Wait until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


def _best_s(work: Callable[[], object], device: str, tries: int = 5) -> float:
    times = []
    for _ in range(tries):
        synchronise(device)
        begin = time.perf_counter()
        work()
        synchronise(device)
        times.append(time.perf_counter() - begin)
    return min(times)
