"""A run as one plain record: it is written into the run directory, and a resumed run reads it there.

One record for one fact: what somebody may ask for stands in the recipe, completed; beside it stands only what
was found when the run was prepared.
"""

from pathlib import Path
from typing import Any

import msgspec

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Count, Positive, Recipe
from dora_rl.core.recipe.data import DataConfig, ScoringConfig
from dora_rl.core.recipe.trainer_config import TrainerConfig
from dora_rl.core.record import Record
from dora_rl.engines.config import EngineConfig
from dora_rl.engines.requests import Sampling

_FORMAT = 2
"""The format number of setup.json, raised when a run could not go on from what an earlier version wrote."""

_LOST = "put the file back from a copy, or start another run from the last checkpoint: --set model=CHECKPOINT"


class DeviceLayout(Record, frozen=True):
    """Which processes a run has, on which devices, and how many threads each may use."""

    instances: Positive = 1
    is_elastic: bool = False
    """Whether an instance that shares a device with the trainer pauses while it trains."""
    instance_device: str = "cpu"
    """`cpu`, `cuda`, or `cuda:i`; instances are dealt out over the GPUs where it is `cuda`."""
    num_gpus: Count = 0
    """How many GPUs instances are dealt out over."""
    trainer_device: str = "cpu"
    """The device of the trainer's first rank: `cpu`, `cuda`, or `cuda:i`."""
    trainer_ranks: Positive = 1
    """Processes that train together. On GPUs each rank has its own: the first rank's and those after it."""
    instance_threads: Positive = 1
    """Torch threads of each instance."""
    trainer_threads: Positive = 1
    """Torch threads of each rank of the trainer."""

    def __post_init__(self) -> None:
        if self.instance_device == "cuda" and not self.num_gpus:
            raise ConfigError(
                "instances are dealt out over no GPUs", hint="set devices.num_gpus, or name one: cuda:0"
            )

    def instance_home(self, number: int) -> str:
        """The device an instance generates on."""
        dealt_out = self.instance_device == "cuda"
        return f"cuda:{number % self.num_gpus}" if dealt_out else self.instance_device

    def pauses(self, number: int) -> bool:
        """Whether an instance generates nothing while the trainer trains."""
        ranks = map(self.rank_device, range(self.trainer_ranks))
        return self.is_elastic and self.instance_home(number) in ranks

    def rank_device(self, rank: int) -> str:
        """The device a rank of the trainer computes on."""
        kind, _, first = self.trainer_device.partition(":")
        return kind if kind == "cpu" else f"{kind}:{int(first or 0) + rank}"


class RunSetup(Record, frozen=True):
    """Everything a run needs. Plain data; nothing in it is loaded yet."""

    recipe: Recipe
    """The completed recipe, nothing left out of it. Journal and event log begin with it."""
    run_directory: str
    """The directory of the run; a new run's must not exist, or be empty."""
    model_directory: str
    """The Hugging Face directory with the initial weights and the tokenizer."""
    engine: EngineConfig
    devices: DeviceLayout
    control_codes: tuple[str, ...] = ()
    """The control code that the run was begun with, and each that went on with it, in order."""
    is_served: bool = False
    """Whether clients ask for what is generated, each with stop strings of its own."""

    def __post_init__(self) -> None:
        # What they are made of is checked as they are made: before the run has a directory.
        _ = self.scoring if self.recipe.rewards else None, self.trainer
        max_staleness, limits = self.recipe.control.staleness_bound, self.engine.limits
        if self.engine.max_versions < 2 and self.devices.instances < 2 and max_staleness:
            raise ConfigError(
                "one instance that holds one version cannot serve a window of several",
                hint="set devices.instances=2, or control.max_staleness=0",
            )
        if self.recipe.frozen_versions and self.engine.max_versions < 3:
            raise ConfigError(
                f"an instance holds {self.engine.max_versions} versions at most: no room for the one that "
                "plays a role beside the one that is trained and the next",
                hint="raise cluster.max_versions, or play the role behind an endpoint: roles.NAME.url",
            )
        if self.engine.dtype != self.recipe.trainer.serving_dtype:
            raise ConfigError(
                f"versions are published in {self.recipe.trainer.serving_dtype}; the engine holds them in "
                f"{self.engine.dtype}",
                hint="give the engine the dtype of trainer.serving_dtype",
            )
        if self.max_new_tokens >= limits.max_positions:
            raise ConfigError(
                f"max_new_tokens = {self.max_new_tokens} leaves no room for a prompt: "
                f"sequences have at most {limits.max_positions} tokens"
            )

    @property
    def data(self) -> DataConfig:
        """The recipe's section about rows, which a completed recipe has."""
        assert self.recipe.data is not None, "a completed recipe names its rows"
        return self.recipe.data

    @property
    def max_new_tokens(self) -> int:
        """The most tokens a response may have."""
        found = self.recipe.response.max_new_tokens
        assert found is not None, "a completed recipe says how long a response may be"
        return found

    @property
    def looks_for_strings(self) -> bool:
        """Whether a turn may end at a string: the recipe's, or one that an episode or a client asks for."""
        return bool(self.recipe.response.stop_strings) or self.recipe.episode is not None or self.is_served

    @property
    def scoring(self) -> ScoringConfig:
        """The recipe's reward functions, and the processes they run in."""
        return ScoringConfig(rewards=self.recipe.rewards, **_fields(self.recipe.scoring))

    @property
    def trainer(self) -> TrainerConfig:
        """Every setting of the trainer, from all sections that have one."""
        return trainer_config(self.recipe)

    @property
    def evaluation_sampling(self) -> Sampling:
        """How tokens of held-out rows are sampled."""
        return self.recipe.evaluation.sampling(self.recipe.sampling)


def trainer_config(recipe: Recipe) -> TrainerConfig:
    """A trainer as a completed recipe describes it: its own section and what others say about it."""
    settings = _fields(recipe.trainer)
    if recipe.trainer.micro_batch_tokens is None:
        del settings["micro_batch_tokens"]
    return TrainerConfig(
        algorithm=recipe.algorithm,
        optimizer=recipe.optimizer,
        updates=recipe.batch.updates,
        seed=recipe.seed,
        **settings,
    )


def write_setup(setup: RunSetup, path: Path) -> None:
    """Write the set-up as JSON, for people to read."""
    path.write_bytes(encode_setup(setup))


def encode_setup(setup: RunSetup) -> bytes:
    """The content of the file that `read_setup` reads."""
    whole = {"format": _FORMAT, **msgspec.to_builtins(setup)}
    return msgspec.json.format(msgspec.json.encode(whole)) + b"\n"


def read_setup(path: Path) -> RunSetup:
    """Read what `write_setup` wrote; a ConfigError explains a file that another version wrote."""
    try:
        whole = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        written = whole.pop("format", 1)
        if written != _FORMAT:
            raise ConfigError(
                f"{path} has format {written}, and this version of dora-rl reads format {_FORMAT}",
                hint="resume with the version of dora-rl that the run was started with",
            )
        return msgspec.convert(whole, RunSetup)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} is no set-up of a live run: {error}", hint=_LOST) from error
    except ConfigError as error:
        told = error.message if str(path) in error.message else f"{path}: {error.message}"
        raise ConfigError(told, hint=error.hint or _LOST) from error


def _fields(section: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(section)
