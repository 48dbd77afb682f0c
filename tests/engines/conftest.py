"""Three versions of one tiny model, on disk and in transformers, and an engine that serves them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.cpu_executor import CPU
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.model.hub_config import read_config
from dora_rl.model.save import save_decoder
from dora_rl.model.tiny import seeded_decoder, tiny_config

VOCAB_SIZE = 103
EOS = 2
NUM_VERSIONS = 3


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    # Models this small gain nothing from threads, and on a busy machine lose seconds waiting for them.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One directory a version."""
    return save_versions(tmp_path_factory)


def save_versions(temporary: pytest.TempPathFactory, *, head_dim: int = 16) -> list[Path]:
    """Save versions of a tiny model with heads of that size: one directory a version."""
    paths = [temporary.mktemp(f"version_{version}") for version in range(NUM_VERSIONS)]
    for seed, path in enumerate(paths):
        decoder = seeded_decoder(tiny_config(VOCAB_SIZE, (EOS,), head_dim=head_dim), seed)
        for parameter in decoder.parameters():
            # Larger than at birth, so that the likeliest token is seldom a close call.
            parameter.data *= 4
        save_decoder(decoder, path)
    return paths


@pytest.fixture(scope="session")
def references(directories: list[Path]) -> list[PreTrainedModel]:
    """The same versions in transformers."""
    return [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for path in directories]


MakeEngine = Callable[..., NativeEngine]


@pytest.fixture(scope="session")
def backend() -> Backend:
    """The CPU, or the GPU where `DORA_TEST_DEVICE` says so: the laws are the same."""
    if os.environ.get("DORA_TEST_DEVICE") != "cuda":
        return CPU
    from dora_rl.engines.native.cuda import CUDA

    return CUDA


@pytest.fixture(scope="session")
def make_engine(directories: list[Path], backend: Backend) -> MakeEngine:
    """An engine with all versions resident; limits and settings as given."""

    def make(
        *,
        is_batch_invariant: bool = False,
        steps_ahead: int = 0,
        dtype: str = "float32",
        guessed_tokens: int = 0,
        **limits: int,
    ) -> NativeEngine:
        sizes = {
            "num_blocks": 200,
            "block_size": 8,
            "max_running": 16,
            "step_tokens": 64,
            "max_positions": 512,
        }
        config = EngineConfig(
            limits=Limits(**sizes | limits),
            is_batch_invariant=is_batch_invariant,
            steps_ahead=steps_ahead,
            guessed_tokens=guessed_tokens,
            dtype=dtype,  # type: ignore[arg-type]
        )
        engine = NativeEngine(
            read_config(directories[0] / "config.json"),
            config,
            Stops([EOS], decode=lambda tokens: "".join(chr(32 + token) for token in tokens)),
            backend=backend,
        )
        for version, path in enumerate(directories):
            engine.load_version(version, path)
        return engine

    return make
