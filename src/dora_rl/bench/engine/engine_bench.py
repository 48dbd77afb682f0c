"""What the engine's benchmark measures: device, shape and workloads; the device sets what is left out."""

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dora_rl.bench.device import DeviceKind, backend_of
from dora_rl.bench.engine.reference import gpu_reference
from dora_rl.bench.engine.workloads import (
    PROMPT_TOKENS,
    RequestWorkload,
    long_tail,
    parse_workload,
    read_lengths,
)
from dora_rl.core.errors import ConfigError
from dora_rl.core.record import Record
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.paged import PagedCache
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.model.config import Dtype, ModelConfig
from dora_rl.model.hub_config import read_config
from dora_rl.model.random_models import SHAPES, random_weights

_KV_SHARE = 0.6
"""Largest share of the free memory that KV takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBench:
    """The set-up that all sections of the engine's benchmark share."""

    device: DeviceKind
    shape: str
    """Name of the measured model's shape, or where its configuration was read."""
    model: ModelConfig
    dtype: Dtype
    workloads: tuple[RequestWorkload, ...]
    repeats: int
    least_s: float
    """Least seconds of timed runs of a row of the table: short ones are repeated until then."""
    steps_ahead: int
    step_tokens: int
    directory: Path | None = None
    """Model directory of the section `cpu`; None is SmolLM2-135M-Instruct out of its package."""
    cpu_tail: RequestWorkload | None = None
    """Workload of the section `cpu`, if not its own."""
    is_vllm_beside: bool = False
    """Whether vLLM runs the same workloads first."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of weights and KV."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def engine(
        self,
        workloads: Sequence[RequestWorkload],
        *,
        num_versions: int = 1,
        num_host_blocks: int = 0,
        is_batch_invariant: bool = False,
        guessed_tokens: int = 0,
    ) -> NativeEngine:
        """An engine that holds the largest of the workloads at once, as far as memory allows."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        config = EngineConfig(
            limits=self._limits(workloads, num_host_blocks),
            dtype=self.dtype,
            max_versions=num_versions,
            is_batch_invariant=is_batch_invariant,
            steps_ahead=self.steps_ahead,
            guessed_tokens=guessed_tokens,
            device_bytes=_free_bytes(self.device),
            host_bytes=_free_bytes("cpu"),
        )
        engine = NativeEngine(self.model, config, Stops(()), backend=backend_of(self.device))
        for version in range(num_versions):
            engine.load_version(version, self.weights(seed=version))
        return engine

    def weights(self, seed: int) -> dict[str, torch.Tensor]:
        """Random weights of the measured shape, on the device."""
        return dict(random_weights(self.model, seed=seed, device=self.device, dtype=self.torch_dtype))

    def _limits(self, workloads: Sequence[RequestWorkload], num_host_blocks: int) -> Limits:
        block_size = 32
        needed = max(each.total_tokens + block_size * len(each.lengths) for each in workloads)
        cell_bytes = PagedCache.cell_bytes(self.model, self.torch_dtype)
        affordable = int(_KV_SHARE * _free_bytes(self.device)) // cell_bytes
        max_running = max(len(each.lengths) for each in workloads)
        return Limits(
            num_blocks=min(needed, affordable) // block_size + max_running,
            block_size=block_size,
            num_host_blocks=num_host_blocks,
            max_running=max_running,
            step_tokens=max(self.step_tokens, max_running),
            max_positions=min(max(each.longest for each in workloads), self.model.max_positions),
        )


def _free_bytes(device: DeviceKind) -> int:
    if device == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info()
        return int(free_bytes)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class DeviceDefaults(Record, frozen=True):
    """What is measured on a kind of device unless the options name something else.

    Where reference figures of the shape are known, their rows are measured instead of these.
    """

    shape: str
    dtype: Dtype
    rows: tuple[str, ...]
    sections: tuple[str, ...]
    prompt_tokens: int
    least_s: float
    steps_ahead: int
    step_tokens: int


DEFAULTS: dict[DeviceKind, DeviceDefaults] = {
    "cuda": DeviceDefaults(
        shape="qwen3-0.6b",
        dtype="bfloat16",
        rows=("1x256", "16x256", "64x256", "256x256", "256xtail"),
        sections=("table", "invariant", "versions", "weights", "migrate", "host"),
        prompt_tokens=PROMPT_TOKENS,
        least_s=3.0,
        steps_ahead=1,
        step_tokens=8192,
    ),
    "cpu": DeviceDefaults(
        shape="smollm2-135m",
        dtype="float32",
        rows=("1x32", "8x32", "32x32"),
        sections=("table", "invariant", "versions", "weights", "migrate", "host"),
        prompt_tokens=32,
        least_s=0.0,
        steps_ahead=0,
        step_tokens=512,
    ),
}


def make_setup(
    *,
    device: DeviceKind,
    shape: str | None = None,
    rows: Sequence[str] = (),
    lengths: Path | None = None,
    repeats: int = 2,
    steps_ahead: int | None = None,
    step_tokens: int | None = None,
    directory: Path | None = None,
    is_vllm_beside: bool = False,
) -> EngineBench:
    """The set-up that options of the command line ask for."""
    defaults = DEFAULTS[device]
    shape = shape or defaults.shape
    model = find_model(shape)
    tail = long_tail() if lengths is None else read_lengths(lengths)
    known = gpu_reference(model) if device == "cuda" else None
    names = rows or (defaults.rows if known is None else tuple(known.speeds))
    return EngineBench(
        device=device,
        shape=shape,
        model=model,
        dtype=defaults.dtype,
        workloads=tuple(parse_workload(name, tail, defaults.prompt_tokens) for name in names),
        repeats=repeats,
        least_s=defaults.least_s,
        steps_ahead=defaults.steps_ahead if steps_ahead is None else steps_ahead,
        step_tokens=step_tokens or defaults.step_tokens,
        directory=directory,
        is_vllm_beside=is_vllm_beside and device == "cuda",
    )


def find_model(shape: str) -> ModelConfig:
    """The model of a known shape, or the one that a `config.json` or the directory of one describes."""
    if shape in SHAPES:
        return SHAPES[shape]
    path = Path(shape)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"no shape '{shape}'", hint=f"a config.json, or one of {', '.join(SHAPES)}")
    return read_config(path)
