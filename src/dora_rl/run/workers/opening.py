"""An instance's engine: on its device, knowing what ends a response, without a version."""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.executor import CPU
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.model.hub_config import read_config
from dora_rl.run.layout import LiveLayout
from dora_rl.run.messages import Begin
from dora_rl.run.workers.tracked import TrackedEngine


def open_tracked(begin: Begin) -> tuple[TrackedEngine, str]:
    """The engine of an instance, and the device it is on."""
    setup = begin.setup
    device = setup.devices.instance_home(begin.number)
    backend = _backend(device)
    model = read_config(Path(setup.model_directory) / "config.json")
    return TrackedEngine(model, setup.engine, _stops(begin), backend=backend), device


def _stops(begin: Begin) -> Stops:
    if not begin.setup.recipe.response.stop_strings:
        return Stops(begin.stop_tokens)
    tokenizer = Tokenizer.from_file(str(LiveLayout(root=Path(begin.setup.run_directory)).tokenizer))

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=False))

    return Stops(begin.stop_tokens, decode)


def _backend(device: str) -> Backend:
    if device == "cpu":
        return CPU
    from dora_rl.engines.native.cuda.backend import backend_on

    torch.cuda.set_device(device)
    return backend_on(device)
