"""What a device itself can do (a copy, one large product), and the least time a workload could take on it.

Every request runs from the start, so step `i` decodes those that are longer than `i`. A decode step reads all
weights and the KV of all rows, or multiplies, whichever takes longer; prompts cost their arithmetic. Host,
launches and samplers cost nothing here: no engine gets all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from dora_rl.bench.device import synchronised_s
from dora_rl.bench.engine.workloads import RequestWorkload
from dora_rl.model.config import ModelConfig

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


def least_time_s(
    model: ModelConfig, workload: RequestWorkload, hardware: DeviceSpeed, *, itemsize: int
) -> float:
    """The least seconds that prompts and decode steps of a workload can take together."""
    steps = np.arange(1, max(workload.lengths))
    rows = np.searchsorted(np.sort(workload.lengths), steps, side="right")
    rows = len(workload.lengths) - rows
    context = rows * (workload.prompt_tokens + steps)
    moved = itemsize * (_matrix_values(model) + context * _kv_values(model))
    arithmetic = 2.0 * rows * _matrix_values(model) + 4.0 * context * model.num_layers * model.q_size
    decode_s = np.maximum(moved / hardware.bytes_s, arithmetic / hardware.flops).sum()
    return float(decode_s) + _prefill_flops(model, workload) / hardware.flops


def _prefill_flops(model: ModelConfig, workload: RequestWorkload) -> float:
    count, length = len(workload.lengths), workload.prompt_tokens
    head = 2.0 * model.vocab_size * model.hidden_size
    layers = 2.0 * (_matrix_values(model) - model.vocab_size * model.hidden_size)
    attention = 2.0 * (length + 1) * model.num_layers * model.q_size
    return count * (length * (layers + attention) + head)


def _matrix_values(model: ModelConfig) -> int:
    """Number of weights that a token is multiplied with."""
    attention = model.hidden_size * (2 * model.q_size + 2 * model.kv_size)
    mlp = 3 * model.hidden_size * model.intermediate_size
    return model.num_layers * (attention + mlp) + model.vocab_size * model.hidden_size


def _kv_values(model: ModelConfig) -> int:
    """Number of key and value entries of one token, over all layers."""
    return 2 * model.num_layers * model.kv_size
