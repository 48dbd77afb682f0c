"""A live run as one plain record: it is written into the run directory, and a resumed run reads it there."""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import field

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import (
    Batch,
    Cluster,
    Control,
    Count,
    Lognormal,
    Positive,
    PositiveFloat,
    Recipe,
    Task,
)
from dora_rl.core.recipe.live import WarmStart
from dora_rl.core.recipe.trainer import TrainerConfig
from dora_rl.core.record import Record
from dora_rl.engines.config import EngineConfig
from dora_rl.engines.requests import Sampling
from dora_rl.envs.config import DataConfig, ScoringConfig


class Devices(Record, frozen=True):
    """Which processes there are and what each may use."""

    instances: Positive = 1
    is_elastic: bool = False
    """An instance that shares a device with the trainer pauses while it trains."""
    instance_device: str = "cpu"
    """`cpu`, `cuda`, or `cuda:i`; instances are dealt out over the GPUs where it is `cuda`."""
    num_gpus: Count = 0
    """Over which instances are dealt out."""
    trainer_device: str = "cpu"
    """Like `instance_device`; of the first rank where there are several."""
    trainer_ranks: Positive = 1
    """Processes that train together. On GPUs each has its own: the first one's and those after it."""
    instance_threads: Positive = 1
    """Threads of torch in each instance."""
    trainer_threads: Positive = 1
    """Threads of torch in each rank of the trainer."""

    def __post_init__(self) -> None:
        if self.instance_device == "cuda" and not self.num_gpus:
            raise ConfigError(
                "instances are dealt out over no GPUs", hint="set devices.num_gpus, or name one: cuda:0"
            )

    def instance_home(self, number: int) -> str:
        """Where an instance generates."""
        dealt_out = self.instance_device == "cuda"
        return f"cuda:{number % self.num_gpus}" if dealt_out else self.instance_device

    def pauses(self, number: int) -> bool:
        """Whether an instance stands still while the trainer trains."""
        ranks = map(self.rank_device, range(self.trainer_ranks))
        return self.is_elastic and self.instance_home(number) in ranks

    def rank_device(self, rank: int) -> str:
        """Where a rank of the trainer computes."""
        kind, _, first = self.trainer_device.partition(":")
        return kind if kind == "cpu" else f"{kind}:{int(first or 0) + rank}"


class Evaluation(Record, frozen=True):
    """Trajectories for held-out rows, generated beside the training."""

    every_steps: Positive = 10
    """After how many published versions."""
    prompts: Positive = 64
    """How many held-out rows, from the first on."""
    sampling: Sampling = Sampling(temperature=0.0)


class Patience(Record, frozen=True):
    """How long anything is waited for, and how often a worker may die."""

    start_s: PositiveFloat = 300.0
    """For a worker to be ready after its start, its model loaded."""
    load_s: PositiveFloat = 300.0
    """For an instance to load a version."""
    step_s: PositiveFloat = 3600.0
    """For the trainer to train, publish or write a checkpoint; for rows to be read, a warm start to move."""
    progress_s: PositiveFloat = 3600.0
    """For a trajectory to end or a step to be published: otherwise the run is stuck."""
    stop_s: PositiveFloat = 30.0
    """For a worker to end when it is told to."""
    max_deaths: Positive = 3
    """A worker that dies so often without a version published in between ends the run."""


class LiveSetup(Record, frozen=True):
    """Everything a live run needs. Plain data; nothing in it is loaded yet."""

    run_directory: str
    """Where the run leaves everything; must not exist, or be empty."""
    model: str
    """A Hugging Face directory: the initial weights, and the tokenizer."""
    data: DataConfig
    scoring: ScoringConfig
    engine: EngineConfig
    max_new_tokens: Positive
    """A response ends there, at the latest."""
    steps: Positive
    seed: Count = 0
    """Of every draw: prompts, tokens, fresh LoRA factors."""
    batch: Batch = field(default_factory=Batch)
    control: Control = field(default_factory=Control)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """`updates` and `seed` are taken from `batch` and the run."""
    sampling: Sampling = Sampling()
    stop_strings: tuple[str, ...] = ()
    devices: Devices = field(default_factory=Devices)
    warm_start: WarmStart | None = None
    """What the model goes through before it is version 0."""
    evaluation: Evaluation | None = None
    checkpoint_every_steps: Positive = 10
    """A checkpoint is also written at the end, and when the run is interrupted."""
    kept_trainer_states: Positive = 2
    """Newest checkpoints that keep what training goes on from, beside the weights."""
    report_every_s: PositiveFloat = 1.0
    """How often an instance says what it carries and which tokens it has drawn since."""
    patience: Patience = field(default_factory=Patience)
    recipe: Recipe | None = None
    """What the logs are headed with; left out, it is made of the rest."""

    def __post_init__(self) -> None:
        if self.engine.max_versions < 2 and self.devices.instances < 2 and self.control.max_staleness:
            raise ConfigError(
                "one instance that holds one version cannot serve a window of several",
                hint="raise engine.max_versions, add instances, or set control.max_staleness to 0",
            )
        if self.engine.dtype != self.dtype:
            raise ConfigError(
                f"versions are published in {self.dtype}; the engine holds them in {self.engine.dtype}",
                hint="give the engine the trainer's serving_dtype",
            )
        if self.max_new_tokens >= self.engine.limits.max_positions:
            raise ConfigError(
                f"max_new_tokens = {self.max_new_tokens} leaves no room for a prompt: "
                f"sequences have at most {self.engine.limits.max_positions} tokens"
            )

    @property
    def dtype(self) -> Literal["bfloat16", "float32"]:
        """Of a version, in the store and in the engines."""
        return self.trainer.serving_dtype

    @property
    def trainer_config(self) -> TrainerConfig:
        """The trainer's settings, completed by the run's."""
        return msgspec.structs.replace(self.trainer, updates=self.batch.updates, seed=self.seed)

    def header(self, prompt_tokens: int = 1) -> Recipe:
        """The recipe that journal and event log begin with."""
        if self.recipe is not None:
            return self.recipe
        limits, instances = self.engine.limits, self.devices.instances
        return Recipe(
            model=Path(self.model).name or self.model,
            seed=self.seed,
            steps=self.steps,
            batch=self.batch,
            control=self.control,
            cluster=Cluster(
                gpus=instances + self.devices.trainer_ranks,
                rollout_gpus=instances,
                tensor_parallel=1,
                slots=limits.max_running,
                max_versions=self.engine.max_versions,
            ),
            task=Task(
                prompt_tokens=prompt_tokens,
                lengths=Lognormal(min_tokens=1, max_tokens=self.max_new_tokens),
            ),
        )


def write_setup(setup: LiveSetup, path: Path) -> None:
    """As JSON, for people to read."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(setup)) + b"\n")


def read_setup(path: Path) -> LiveSetup:
    """What `write_setup` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LiveSetup)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} is no set-up of a live run: {error}") from error
