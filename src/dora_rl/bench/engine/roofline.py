"""The least time a workload could take on a device: the sum over operations, not the larger of two sums.

Every product, and the attention of every layer, takes the longer of reading what it needs (weights, or KV)
and multiplying; a kernel that multiplies leaves the memory idle, whatever the next one waits for. All prompts
are one pass. Then every request runs from the start, so step `i` decodes those that are longer than `i`. Of
experts those are read that some token chose, if all are equally likely. Host, launches, samplers, and what
goes from one operation to the next cost nothing here: no engine gets all of it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dora_rl.bench.engine.device_speed import DeviceSpeed
from dora_rl.bench.engine.workloads import RequestWorkload
from dora_rl.model.config import Experts, ModelConfig

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """What passes through the model compute, one number a pass."""

    tokens: Numbers
    drawn: Numbers
    """Tokens that a word is drawn after: those the head is for."""
    cells: Numbers
    """Cells of KV that are read in a layer."""
    pairs: Numbers
    """Pairs of a token and one it attends to."""


def least_time_s(
    model: ModelConfig, workload: RequestWorkload, hardware: DeviceSpeed, *, itemsize: int
) -> float:
    """The least seconds that prompts and decode steps of a workload can take together."""
    passes = (_prompts(workload), _decode_steps(workload))
    return sum(float(_passes_s(model, each, hardware, itemsize).sum()) for each in passes)


def _prompts(workload: RequestWorkload) -> Passes:
    count, length = len(workload.lengths), workload.prompt_tokens
    return Passes(
        tokens=np.array([count * length], float),
        drawn=np.array([count], float),
        cells=np.zeros(1),
        pairs=np.array([count * length * (length + 1) / 2], float),
    )


def _decode_steps(workload: RequestWorkload) -> Passes:
    steps = np.arange(1, max(workload.lengths), dtype=float)
    ended = np.searchsorted(np.sort(workload.lengths), steps, side="right")
    rows = (len(workload.lengths) - ended).astype(float)
    context = rows * (workload.prompt_tokens + steps)
    return Passes(tokens=rows, drawn=rows, cells=context, pairs=context)


def _passes_s(model: ModelConfig, passes: Passes, hardware: DeviceSpeed, itemsize: int) -> Numbers:
    def longer(values: Numbers | float, multiplied: Numbers) -> Numbers:
        took: Numbers = np.maximum(itemsize * values / hardware.bytes_s, 2.0 * multiplied / hardware.flops)
        return took

    def product(inputs: int, outputs: int, rows: Numbers) -> Numbers:
        return longer(float(inputs * outputs), inputs * outputs * rows)

    def experts_product(experts: Experts, inputs: int, outputs: int) -> Numbers:
        share = experts.num_active / experts.num_experts
        read = experts.num_experts * (1.0 - (1.0 - share) ** passes.tokens)
        return longer(inputs * outputs * read, inputs * outputs * experts.num_active * passes.tokens)

    def feed_forward(layer: int) -> Numbers:
        if (experts := model.experts_of(layer)) is None:
            inner = model.intermediate_size
            return product(width, 2 * inner, passes.tokens) + product(inner, width, passes.tokens)
        inner = experts.intermediate_size
        router = product(width, experts.num_experts, passes.tokens)
        return router + experts_product(experts, width, 2 * inner) + experts_product(experts, inner, width)

    width = model.hidden_size
    attention = (
        product(width, model.q_size + 2 * model.kv_size, passes.tokens)
        + longer(2 * model.kv_size * passes.cells, 2 * model.q_size * passes.pairs)
        + product(model.q_size, width, passes.tokens)
    )
    layers = sum(feed_forward(layer) for layer in range(model.num_layers)) + model.num_layers * attention
    return layers + product(width, model.vocab_size, passes.drawn)
