"""The least time a workload could take on a device, whatever the engine.

Every request runs from the start, so step `i` decodes those that are longer than `i`. A decode step reads all
weights and the KV of all rows, or multiplies, whichever takes longer; prompts cost their arithmetic. Host,
launches and samplers cost nothing here: no engine gets all of it.
"""

from dataclasses import dataclass

import numpy as np

from dora_rl.engines.bench.workloads import Workload
from dora_rl.model.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a device was seen to do."""

    bytes_s: float
    """Copying: read and written bytes together."""
    flops: float
    """A second, in one large product."""

    def __str__(self) -> str:
        return f"{self.bytes_s / 1e12:.2f} TB/s, {self.flops / 1e12:.1f} TFLOP/s"


def least_time_s(model: ModelConfig, workload: Workload, hardware: Hardware, *, itemsize: int) -> float:
    """Of prompts and decode steps together."""
    steps = np.arange(1, max(workload.lengths))
    rows = np.searchsorted(np.sort(workload.lengths), steps, side="right")
    rows = len(workload.lengths) - rows
    context = rows * (workload.prompt_tokens + steps)
    moved = itemsize * (_matrix_values(model) + context * _kv_values(model))
    arithmetic = 2.0 * rows * _matrix_values(model) + 4.0 * context * model.num_layers * model.q_size
    decode_s = np.maximum(moved / hardware.bytes_s, arithmetic / hardware.flops).sum()
    return float(decode_s) + _prefill_flops(model, workload) / hardware.flops


def _prefill_flops(model: ModelConfig, workload: Workload) -> float:
    count, length = len(workload.lengths), workload.prompt_tokens
    head = 2.0 * model.vocab_size * model.hidden_size
    layers = 2.0 * (_matrix_values(model) - model.vocab_size * model.hidden_size)
    attention = 2.0 * (length + 1) * model.num_layers * model.q_size
    return count * (length * (layers + attention) + head)


def _matrix_values(model: ModelConfig) -> int:
    """Values that a token is multiplied with."""
    attention = model.hidden_size * (2 * model.q_size + 2 * model.kv_size)
    mlp = 3 * model.hidden_size * model.intermediate_size
    return model.num_layers * (attention + mlp) + model.vocab_size * model.hidden_size


def _kv_values(model: ModelConfig) -> int:
    """Of one token."""
    return 2 * model.num_layers * model.kv_size
