"""What vLLM reached on the same workloads: the figures of `reference.json`, which the authors measured.

The file says for each machine and shape which build it was, under what conditions, and when it was written
down. Where vLLM is installed it is measured beside us instead (`vllm_beside`).
"""

from functools import cache
from pathlib import Path

import msgspec

from dora_rl.core.record import Record
from dora_rl.model.config import ModelConfig
from dora_rl.model.random_models import SHAPES


class ReferenceSpeed(Record, frozen=True):
    """The speed of another engine on one workload, and the share of it that counts as reaching it."""

    tokens_s: float
    floor_ratio: float | None = None
    """Least share of the other engine's speed that counts as reaching it; None asks for none."""


class ReferenceFigures(Record, frozen=True):
    """The speeds of one build of another engine on one machine."""

    machine: str
    engine: str
    """Name and version of the other engine."""
    recorded_on: str
    """The day the figures were written down here, as YYYY-MM-DD; they may have been measured earlier."""
    shape: str
    """Name of the model's shape."""
    conditions: str
    speeds: dict[str, ReferenceSpeed]
    """Speeds by the workload's name, such as `64x256`."""


class References(Record, frozen=True):
    """All reference figures, by kind of device."""

    gpu: tuple[ReferenceFigures, ...]
    """One for each shape."""
    cpu: ReferenceFigures


@cache
def references() -> References:
    """Read the reference figures from the file beside this module."""
    return msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=References)


def floor_verdict(ratio: float, floor_ratio: float | None) -> str | None:
    """Whether a share of another engine's speed is enough, in words; None where none is asked for."""
    if floor_ratio is None:
        return None
    return f"{'met' if ratio >= floor_ratio else 'missed'} ({floor_ratio:g}x)"


def gpu_reference(model: ModelConfig) -> ReferenceFigures | None:
    """The figures of a GPU for a model of these sizes, whatever it is called; None where there are none."""
    sizes = _sizes(model)
    return next((each for each in references().gpu if _sizes(SHAPES[each.shape]) == sizes), None)


def _sizes(model: ModelConfig) -> tuple[object, ...]:
    """Everything that decides how fast a model is; where all layers have experts the MLP's width does not."""
    has_mlp = any(model.experts_of(layer) is None for layer in range(model.num_layers))
    return (
        model.vocab_size,
        model.hidden_size,
        model.intermediate_size if has_mlp else None,
        model.num_layers,
        model.num_heads,
        model.num_kv_heads,
        model.head_dim,
        model.is_tied,
        model.experts,
    )
