"""A tiny model, a store with some versions of it, and a set-up of a run that takes seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from dora_rl.core.recipe import Batch, Control
from dora_rl.core.recipe.trainer import OptimizerConfig, TrainerConfig
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.requests import Request, Sampling, Stopping, StreamKey
from dora_rl.envs.config import DataConfig, RewardConfig, ScoringConfig, SourceConfig
from dora_rl.model.load import load_decoder
from dora_rl.model.tiny import save_tiny
from dora_rl.run.setup import LiveSetup
from dora_rl.weights.store import Store

EVEN_REWARD = f"{Path(__file__).with_name('rewards.py')}:even_reward"
MakeSetup = Callable[..., LiveSetup]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    # Models this small gain nothing from threads, and on a busy machine lose seconds waiting for them.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory."""
    directory = tmp_path_factory.mktemp("model")
    save_tiny(directory)
    return directory


@pytest.fixture(scope="session")
def store(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 0 to 2, each a little different from the one before."""
    directory = tmp_path_factory.mktemp("versions")
    decoder = load_decoder(model, dtype=torch.float32)
    with Store(directory) as publishing:
        for version in range(3):
            tensors = {name: tensor.detach().clone() for name, tensor in decoder.named_parameters()}
            next(iter(tensors.values())).view(-1)[: 10 * version] += 0.5
            publishing.publish(version, tensors)
    return directory


@pytest.fixture
def make_setup(model: Path, tmp_path: Path) -> MakeSetup:
    """A run of a few seconds; anything may be said otherwise."""
    return lambda **changes: live_setup(model, tmp_path / "run", **changes)


def live_setup(model: Path, run_directory: Path, **changes: Any) -> LiveSetup:
    """A run of a few seconds."""
    limits = Limits(
        num_blocks=256, block_size=16, max_running=16, step_tokens=64, max_positions=512, num_host_blocks=64
    )
    setup = LiveSetup(
        run_directory=str(run_directory),
        model=str(model),
        data=DataConfig(train=SourceConfig(name="count", options={"rows": 64, "held_out_rows": 8})),
        scoring=ScoringConfig(rewards=(RewardConfig(function=EVEN_REWARD),), processes=1),
        engine=EngineConfig(limits=limits, max_versions=4),
        max_new_tokens=48,
        # A fresh model draws every character about as often: responses of very different lengths.
        stop_strings=("a", "b", "c", "d"),
        steps=3,
        batch=Batch(groups=2, group_size=3),
        control=Control(max_staleness=2, rebalance_period_s=0.3, silence_s=20.0),
        trainer=TrainerConfig(serving_dtype="float32", optimizer=OptimizerConfig(learning_rate=1e-3)),
        report_every_s=0.1,
        checkpoint_every_steps=2,
    )
    return msgspec.structs.replace(setup, **changes)


def request(id: int, *, version: int = 0, max_new_tokens: int = 20, **fields: Any) -> Request:
    """Some request; its length is prescribed, so that tests know how long it takes."""
    made: dict[str, Any] = {
        "prompt": (5, 9, 11, 17),
        "key": StreamKey(seed=7, row=3, member=1),
        "sampling": Sampling(),
        "stopping": Stopping(max_new_tokens=max_new_tokens, is_length_prescribed=True),
    }
    return Request(id=id, version=version, **(made | fields))
