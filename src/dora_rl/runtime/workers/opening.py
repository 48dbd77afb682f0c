"""An instance's engine: on its device, with its tokenizer, without a version."""

from collections.abc import Sequence
from pathlib import Path

import torch

from dora_rl.model.hub_config import read_config
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer
from dora_rl.rollout.native.backend import Backend
from dora_rl.rollout.native.executor import CPU
from dora_rl.rollout.native.setup import EngineConfig
from dora_rl.rollout.scheduling.stops import Stops
from dora_rl.runtime.setup import LiveSetup
from dora_rl.runtime.workers.tracked import TrackedEngine


def open_tracked(setup: LiveSetup, number: int) -> tuple[TrackedEngine, str]:
    """The engine of instance `number`, and the device it is on."""
    directory, engine = Path(setup.model), setup.engine
    config = EngineConfig(
        limits=engine.limits,
        dtype=setup.dtype,
        max_versions=engine.max_versions,
        is_batch_invariant=engine.is_batch_invariant,
        steps_ahead=engine.steps_ahead,
        device_bytes=engine.device_bytes,
        host_bytes=engine.host_bytes,
    )
    backend, device = _backend(setup.devices.instance_device, number)
    stops = _stops(directory, needs_text=bool(setup.stop_strings))
    return TrackedEngine(read_config(directory / "config.json"), config, stops, backend=backend), device


def _stops(directory: Path, *, needs_text: bool) -> Stops:
    if not needs_text:
        return Stops(load_eos_ids(directory))
    tokenizer = load_tokenizer(directory)

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens)))

    return Stops(load_eos_ids(directory), decode)


def _backend(device: str, number: int) -> tuple[Backend, str]:
    if device == "cpu":
        return CPU, "cpu"
    from dora_rl.rollout.native.cuda.backend import backend_on

    if device == "cuda":
        device = f"cuda:{number % torch.cuda.device_count()}"
    torch.cuda.set_device(device)
    return backend_on(device), device
