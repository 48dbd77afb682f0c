"""A tiny model, a store with some versions of it, and a set-up of a run that takes seconds."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from dora_rl.core.recipe import Recipe
from dora_rl.core.struct_loader import build
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.requests import Request, Sampling, Stopping, StreamKey
from dora_rl.envs.data.sources import load_data
from dora_rl.envs.row_stream import load_stream_start
from dora_rl.envs.tokenized_prompts import tokenize_rows, untokenized_rows
from dora_rl.model.load import load_decoder
from dora_rl.model.tiny import save_tiny
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout, RunSetup, write_setup
from dora_rl.store.run_directory import RunDirectory
from dora_rl.store.sealed_files import seal_files
from dora_rl.weights.store import Store

EVEN_REWARD = f"{Path(__file__).with_name('rewards.py')}:even_reward"
MakeSetup = Callable[..., RunSetup]


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
    """A run of a few seconds; any section of its recipe, its devices and its engine may be given."""
    return lambda **changes: run_setup(model, tmp_path / "run", **changes)


def run_setup(
    model: Path,
    run_directory: Path,
    *,
    layout: DeviceLayout | None = None,
    engine_config: EngineConfig | None = None,
    **sections: Any,
) -> RunSetup:
    """A run of a few seconds, of a recipe with these sections instead of its own."""
    limits = Limits(
        num_blocks=256, block_size=16, max_running=16, step_tokens=64, max_positions=512, num_host_blocks=64
    )
    return RunSetup(
        recipe=msgspec.structs.replace(_recipe(model), **sections),
        run_directory=str(run_directory),
        model_directory=str(model),
        engine=engine_config or EngineConfig(limits=limits, max_versions=4),
        devices=layout or DeviceLayout(),
    )


def _recipe(model: Path) -> Recipe:
    tree = {
        "model": str(model),
        "steps": 3,
        "batch": {"groups": 2, "group_size": 3},
        "control": {"max_staleness": 2, "rebalance_period_s": 0.3, "silence_s": 20.0},
        "cluster": {"gpus": 2, "rollout_gpus": 1, "tensor_parallel": 1, "slots": 16, "max_versions": 4},
        "data": {"train": {"name": "count", "options": {"rows": 64, "held_out_rows": 8}}},
        "rewards": [{"function": EVEN_REWARD}],
        "scoring": {"processes": 1},
        # A fresh model draws every character about as often: responses of very different lengths.
        "response": {"max_new_tokens": 48, "stop_strings": ["a", "b", "c", "d"]},
        "trainer": {"serving_dtype": "float32"},
        "optimizer": {"learning_rate": 1e-3},
        "engine": {"kind": "native", "report_every_s": 0.1},
        "checkpoints": {"every": 2},
        "task": {"prompt_tokens": 1, "lengths": {"kind": "lognormal", "min_tokens": 1, "max_tokens": 48}},
    }
    return build(Recipe, tree, "the recipe of a test")


def staged(setup: RunSetup) -> Path:
    """What a run of this set-up begins with, in a directory beside its own, as preparing leaves it."""
    directory, layout = Path(setup.model_directory), LiveLayout(root=Path(f"{setup.run_directory}-inputs"))
    layout.root.mkdir(exist_ok=True)
    tokenizer = load_tokenizer(directory)
    groups, is_stream = setup.recipe.batch.groups, setup.data.train.stream
    data = load_stream_start(setup.data, groups) if is_stream else load_data(setup.data)
    tokenized = tokenize_rows if setup.recipe.episode is None else untokenized_rows
    PromptTable(
        train=tokenized(data.train, tokenizer, setup.data).prompts,
        held_out=tokenized(data.held_out, tokenizer, setup.data).prompts if data.held_out else (),
        stop_tokens=tuple(sorted(load_eos_ids(directory))),
        num_read=data.num_read,
    ).write(layout.prompts)
    layout.tokenizer.write_text(tokenizer.backend_tokenizer.to_str(), encoding="utf-8")
    return layout.root


def written_down(setup: RunSetup) -> None:
    """The directory of a run that was cut short before anything happened."""

    def fill(partial: Path) -> None:
        shutil.copytree(staged(setup), partial, dirs_exist_ok=True)
        write_setup(setup, LiveLayout(root=partial).setup)
        seal_files(partial, LiveLayout(root=partial).sealed)

    RunDirectory.create(Path(setup.run_directory), setup.recipe, fill).close()


def request(id: int, *, version: int = 0, max_new_tokens: int = 20, **fields: Any) -> Request:
    """Some request; its length is prescribed, so that tests know how long it takes."""
    made: dict[str, Any] = {
        "prompt": (5, 9, 11, 17),
        "key": StreamKey(seed=7, row=3, member=1),
        "sampling": Sampling(),
        "stopping": Stopping(max_new_tokens=max_new_tokens, is_length_prescribed=True),
    }
    return Request(id=id, version=version, **(made | fields))
