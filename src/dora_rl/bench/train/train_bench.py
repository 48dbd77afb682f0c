"""The benchmark: peak, our trainer, its variants, and the baseline, in one process and one report."""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import torch

from dora_rl.bench.sequence_lengths import SequenceLengths
from dora_rl.bench.train.baseline import measure_baseline
from dora_rl.bench.train.phase_clock import matmul_peak, release
from dora_rl.bench.train.timed_steps import BASE, TrainerVariant, TrainTiming, measure, variants
from dora_rl.bench.train.train_batches import SHAPES
from dora_rl.core.errors import ConfigError
from dora_rl.core.record import Record


class TrainBench(Record, frozen=True):
    """Which train steps are measured: shapes, device, lengths, variants."""

    shapes: tuple[str, ...] = ("0.6B", "1.7B")
    device: str = "cuda"
    lengths: SequenceLengths = msgspec.field(default_factory=SequenceLengths)
    micro_batch_tokens: int = 16_384
    baseline_tokens: tuple[int, ...] = (8192, 16_384)
    steps: int = 2
    has_baseline: bool = True
    has_variants: bool = False
    is_profiled: bool = False
    """Whether the longest kernels are reported too."""

    def __post_init__(self) -> None:
        unknown = [shape for shape in self.shapes if shape not in SHAPES]
        if unknown:
            raise ConfigError(f"unknown shape '{unknown[0]}'", hint=f"one of: {', '.join(SHAPES)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("there is no CUDA device", hint="use --device cpu --shapes tiny")


class TrainReport(Record, frozen=True):
    """The figures of whole train steps, beside the device's peak."""

    device: str
    peak_flops_per_s: float
    num_sequences: int
    num_tokens: int
    rows: tuple[TrainTiming, ...]


def run_bench(scope: TrainBench, tell: Callable[[TrainTiming], None] = lambda measured: None) -> TrainReport:
    """Measure everything in the scope; `tell` is called with each result as soon as it is there."""
    device = torch.device(scope.device)
    lengths = scope.lengths.draw()
    peak = matmul_peak(device)
    rows = []
    for measured in _measured(scope, lengths, device):
        rows.append(measured)
        tell(measured)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    return TrainReport(
        device=name,
        peak_flops_per_s=peak,
        num_sequences=len(lengths),
        num_tokens=sum(lengths),
        rows=tuple(rows),
    )


def _measured(scope: TrainBench, lengths: list[int], device: torch.device) -> Iterator[TrainTiming]:
    serving = "bfloat16" if device.type == "cuda" else "float32"
    base = msgspec.structs.replace(BASE, micro_batch_tokens=scope.micro_batch_tokens, serving_dtype=serving)
    for shape in scope.shapes:
        model = SHAPES[shape]
        for variant in (
            TrainerVariant(name="dora", config=base),
            *(variants(base) if scope.has_variants else ()),
        ):
            run = partial(
                measure,
                shape,
                model,
                variant,
                lengths,
                device,
                steps=scope.steps,
                is_profiled=scope.is_profiled,
            )
            yield _tried(run, shape, variant.name, device)
        for budget in scope.baseline_tokens if scope.has_baseline else ():
            run = partial(measure_baseline, shape, model, lengths, device, budget=budget, steps=scope.steps)
            yield _tried(run, shape, f"transformers, SDPA, {budget} tokens", device)


def _tried(run: Callable[[], TrainTiming], shape: str, name: str, device: torch.device) -> TrainTiming:
    release(device)
    try:
        return run()
    # One that does not fit or does not compile must not take the others with it: it is a row of the report.
    except Exception as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        return TrainTiming(shape=shape, name=name, failure=f"{type(error).__name__}: {first_line}"[:200])
