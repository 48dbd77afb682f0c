"""What a device itself can do: a copy, and one large product."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dora_rl.bench.device import synchronised_s

_COPY_BYTES = {"cuda": 2**31, "cpu": 2**27}
_MATRIX_SIZE = {"cuda": 8192, "cpu": 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """The speed a device was measured to reach, of memory and of arithmetic."""

    bytes_s: float
    """Bytes a second of a copy, read and written together."""
    flops: float
    """Operations a second in one large product."""

    def __str__(self) -> str:
        return f"{self.bytes_s / 1e12:.2f} TB/s, {self.flops / 1e12:.1f} TFLOP/s"


def measure_hardware(device: str, dtype: torch.dtype) -> DeviceSpeed:
    """Measure the memory and arithmetic speed of a device, the best of a few tries."""
    source = torch.zeros(_COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source), device)
    size = _MATRIX_SIZE[device]
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    product_s = _best_s(lambda: left @ right, device)
    return DeviceSpeed(bytes_s=2 * _COPY_BYTES[device] / copy_s, flops=2.0 * size**3 / product_s)


def _best_s(work: Callable[[], object], device: str, tries: int = 5) -> float:
    times = []
    for _ in range(tries):
        begin_s = synchronised_s(device)
        work()
        times.append(synchronised_s(device) - begin_s)
    return min(times)
