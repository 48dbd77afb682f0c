"""Parts of runs that one small live run does not have, each asked by itself, with files in a directory given.

What is computed is of no interest here, only which keys are read for it.
"""

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import torch

from dora_rl.api.run_place import run_place
from dora_rl.core.errors import UserError
from dora_rl.core.recipe import Cluster, Patience, Recipe
from dora_rl.core.recipe.algorithm import AlgorithmConfig, CorrectionConfig, KlConfig
from dora_rl.core.recipe.endpoints import EndpointSettings
from dora_rl.core.recipe.loss_configs import PolicyGradientConfig
from dora_rl.core.recipe.presets import PRESETS
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.recipe.trainer_config import (
    CriticConfig,
    GapConfig,
    LoraConfig,
    OptimizerConfig,
    TrainerConfig,
)
from dora_rl.envs.data.rows import Row
from dora_rl.envs.data.sources import load_data, load_rows
from dora_rl.envs.endpoint.server import Endpoint
from dora_rl.envs.episodes.episode_messages import TurnAsked
from dora_rl.envs.tokenized_prompts import tokenize_rows
from dora_rl.launch.local import LOCAL
from dora_rl.model.characters import character_tokenizer
from dora_rl.model.tiny import seeded_decoder, tiny_config
from dora_rl.run.episodes.episode_record import BranchRecord, EpisodeRecord, TurnRecord
from dora_rl.run.episodes.episode_turns import EpisodeTurns
from dora_rl.run.episodes.opened_prompts import open_pool
from dora_rl.run.open_run import make_plane
from dora_rl.run.prompt_feed import table_source
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.received import Received
from dora_rl.run.request_table import RequestTable
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.worker_deaths import WorkerDeaths
from dora_rl.sim.simulated_run import simulate
from dora_rl.sim.simulation_setup import complete, resolve
from dora_rl.trainer.train_batch import TrainBatch, TrainGroup, TrainTrajectory
from dora_rl.trainer.trainer_factory import trainer_of

USERS = """
def loss(logprobs, advantages, *, factor):
    return -factor * logprobs * advantages

def advantage(rewards, *, factor):
    return factor * (rewards - rewards.mean())
"""


def train(directory: Path) -> None:
    """One step with every algorithm that has a name, with every correction and with adapters."""
    torch.set_num_threads(1)
    (directory / "users.py").write_text(USERS, encoding="utf-8")
    own = {
        kind: {"kind": "custom", "function": f"{directory}/users.py:{kind}", "options": {"factor": 2.0}}
        for kind in ("loss", "advantage")
    }
    custom = resolve_recipe({"algorithm": own}).algorithm
    plain = AlgorithmConfig(loss=PolicyGradientConfig(), kl=KlConfig(into="reward"))
    corrected = AlgorithmConfig(correction=CorrectionConfig(), kl=KlConfig())
    for algorithm in (*PRESETS.values(), custom, plain, corrected):
        critic = CriticConfig(value_clip=0.2) if algorithm.advantage.needs_critic else None
        _step(algorithm=algorithm, critic=critic, kept_versions=1, updates=2)
    calm = GapConfig(max_mean=1e3)
    _step(gap=calm, kept_versions=2, num_steps=2)
    lora = LoraConfig(rank=1, merged_checkpoints=True)
    checkpoint = _step(lora=lora).take_checkpoint()
    assert checkpoint is not None
    checkpoint.write(directory / "adapter", state="state", origin=directory)


def _step(num_steps: int = 1, **settings: Any) -> Any:
    config = TrainerConfig(serving_dtype="float32", optimizer=OptimizerConfig(learning_rate=1e-3), **settings)
    trainer = trainer_of(seeded_decoder(tiny_config(61), seed=0), config, max_response_tokens=8)
    members = [
        TrainTrajectory(prompt=(1, 2), response=own, logprobs=(-4.0,) * len(own), version=0, reward=reward)
        for own, reward in (((4, 5), 0.0), ((6,), 1.0))
    ]
    groups = tuple(TrainGroup(id=number, members=tuple(members)) for number in range(2))
    for _ in range(num_steps):
        trainer.train(TrainBatch(groups=groups))
    return trainer


def read_rows(directory: Path) -> None:
    """Several tables, a table held out, a data set of the hub, and chats."""
    file = directory / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": "a", "solution": "b"}) + "\n" for _ in range(4)))
    parts = [{"name": str(file), "weight": 1.0, "label": "one"}, {"name": "letters", "weight": 2.0}]
    tables = _data(
        {"train": parts, "held_out": {"name": str(file)}, "system_prompt": "z", "wrap_in_chat": True}
    )
    found = load_data(tables)
    tokenized = tokenize_rows(found.train, character_tokenizer(), tables).prompts
    part_rows = found.part_rows(tables, [prompt.row.row for prompt in tokenized])
    table_source(
        tables, PromptTable(train=tokenized, held_out=(), stop_tokens=(0,), part_rows=part_rows), seed=0
    )
    limited = _data({"train": str(file), "max_prompt_tokens": 1, "overlong_prompts": "skip"})
    rows = [Row(row=0, prompt="a", columns={}), Row(row=1, prompt="ab", columns={})]
    tokenize_rows(rows, character_tokenizer(), limited)
    for name in ("train", "held_out"):
        elsewhere = _data({"train": "hf:x", "held_out": "hf:x"})
        with suppress(UserError):  # neither the package nor the data set need be there
            load_rows(getattr(elsewhere, name), seed=0)
    mixed = _data({"train": [{"name": "hf:x"}, {"name": str(file)}]})
    with suppress(UserError):
        load_data(mixed)


def _data(tree: dict[str, Any]) -> Any:
    return resolve_recipe({"data": tree}).data


def simulate_troubles(directory: Path) -> None:
    """Runs under virtual time in which everything happens that the simulator knows."""
    (directory / "lengths.json").write_text("[10, 20, 30]", encoding="utf-8")
    small = ["batch.groups=4", "group_size=4", "gpus=4", "slots=16", "task.rows=50", "steps=6"]
    troubles = [
        "simulation.faults.instance_deaths_per_hour=1", "hang_share=0.5", "slow_share=0.5",
        "trainer_losses_per_hour=1", "update_s=2000", "task.turns.mean_turns=3", "failure_rate=0.5",
        "environment_tries=1", "adapt_staleness=true", "score_s=0.1", "zero_variance_rate=0.3",
        "filter_zero_variance=true",
    ]  # fmt: skip
    empirical = ["lengths.kind=empirical", f"lengths.path={directory}/lengths.json", "estimates=oracle"]
    _simulate([*small, *troubles])
    _simulate([*small, *empirical])
    episodes = [
        "episode.function=simulated",
        "mean_turns=3",
        "reset_s=5",
        "latency_sigma=3",
        "role_tokens=20",
    ]
    _simulate([*small, *episodes, "environment_grace_s=1"])
    _simulate([*small, "control.schedule=async_ratio", "control.async_ratio=2.5", "suspend=true"])
    _simulate([*small, "model=Qwen3-30B-A3B", "gpus=16", "elastic_gpus=16", "tensor_parallel=8"])


def _simulate(assignments: list[str]) -> Recipe:
    recipe = complete(resolve(assignments=assignments))
    simulate(recipe)
    return recipe


def die(directory: Path) -> None:
    """A worker's death, counted."""
    deaths = WorkerDeaths(Patience(), directory / "log")
    deaths.count("instance 0", "exited with 1", directory / "log")
    assert deaths.is_reliable("instance 0")


def play(directory: Path) -> None:
    """What an episode's process is told, how long its turns may be, and when control gives it up."""
    asked = {"function": "mine:play", "max_context_tokens": 9}
    recipe = resolve_recipe({"episode": asked, "data": {"train": "tools"}})
    setup: Any = SimpleNamespace(
        recipe=recipe, data=recipe.data, run_directory="run", model_directory="model", max_new_tokens=4
    )
    handle = SimpleNamespace(send=lambda message: None)
    launch: Any = SimpleNamespace(start=lambda spec, words: handle)
    deaths = WorkerDeaths(Patience(), directory / "log")
    pool = open_pool(setup, LiveLayout(root=directory), deaths, launch, {})
    turns = EpisodeTurns(setup, RequestTable(), pool)
    record = EpisodeRecord(epoch=0, row=0, member=0, is_evaluation=False, number=0)
    record.branches[0] = BranchRecord(number=0, prompt=(1,))
    record.branches[0].operations.append(TurnRecord(asked_at=0, begin=0, limit=1, end=1, finish="stop"))
    word = TurnAsked(episode=0, branch=0, number=1, tokens=(1,) * 9, is_new=False)
    turns.asked(record, word, 0.0, Received())
    make_plane(setup)._environments.cut_overdue(0.0)


def serve(directory: Path) -> None:
    """A client asks an endpoint."""

    async def asked() -> None:
        endpoint = Endpoint(EndpointSettings(), asyncio.get_running_loop())
        account = endpoint.open("1", SimpleNamespace(model="policy"))
        headers = {"Authorization": f"Bearer {account.key}"}
        async with aiohttp.ClientSession() as client:
            await client.post(f"{endpoint.url('1')}/chat/completions", data=b"{}", headers=headers)
        await endpoint.stop()

    asyncio.run(asked())


def join_cluster(directory: Path) -> None:
    """A run that asks for a cluster which is none, with Ray or without."""
    cluster = Cluster(ray="ray://none", host="127.0.0.1")
    with suppress(UserError), run_place(cluster, LOCAL, print, directory):
        raise AssertionError("there is none")


if __name__ == "__main__":
    for part in (train, read_rows, simulate_troubles, die, play, serve, join_cluster):
        part(Path(sys.argv[1]))
