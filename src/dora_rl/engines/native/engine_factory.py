"""An engine from a Hugging Face directory: its configuration, weights, tokenizer and stop tokens."""

from collections.abc import Sequence
from pathlib import Path

from dora_rl.engines.config import EngineConfig
from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.cpu_executor import CPU
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.model.hub_config import read_config
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer


def open_engine(
    directory: Path, config: EngineConfig, *, version: int = 0, backend: Backend = CPU
) -> NativeEngine:
    """Open an engine that serves the model in the directory as `version`."""
    tokenizer = load_tokenizer(directory)

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens)))

    stops = Stops(load_eos_ids(directory), decode)
    engine = NativeEngine(read_config(directory / "config.json"), config, stops, backend=backend)
    engine.load_version(version, directory)
    return engine
