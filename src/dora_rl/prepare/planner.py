"""A recipe becomes a plan: the model is there, rows and rewards were looked at, everything has its size.

Runs in a process of its own, because it needs torch; whatever a newcomer may have got wrong is said here.
"""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Lognormal, Recipe, Task
from dora_rl.core.recipe.data import ScoringConfig
from dora_rl.core.recipe.generation import Sampling
from dora_rl.core.recipe.trainer import TrainerConfig
from dora_rl.model.config import ModelConfig
from dora_rl.model.hub_config import read_config
from dora_rl.prepare.aside import Doing, Tell
from dora_rl.prepare.disk import disk_entries
from dora_rl.prepare.inputs import Inputs, look_at
from dora_rl.prepare.machine import (
    Gpu,
    free_disk_bytes,
    free_memory_bytes,
    gpus,
    memory_bytes,
    num_cores,
)
from dora_rl.prepare.models import model_directory
from dora_rl.prepare.placement import placements
from dora_rl.prepare.plan import Entry, Place, RunPlan
from dora_rl.prepare.sizing import Sized, size_engine
from dora_rl.prepare.trainer_memory import (
    checkpoint_bytes,
    num_parameters,
    trainer_bytes,
    trainer_config,
)
from dora_rl.run.setup import Devices, Evaluation, LiveSetup

_GIB = 2**30
_COPY = "checkpoint put together"
_MOSTLY_FREE = 0.9
"""Where less is free, whoever finds too little should know."""


def plan_run(recipe: Recipe, run_directory: str, tell: Tell = lambda doing: None) -> RunPlan:
    """Everything about the run that can be known before it starts; says what it is doing."""
    process_bytes = _own_bytes()
    tell(Doing(what=f"looking for the model '{recipe.model}'"))
    directory = model_directory(recipe)
    model, inputs = read_config(directory / "config.json"), look_at(recipe, directory, tell)
    tell(Doing(what="working out who runs where"))
    found = gpus() if recipe.devices.kind != "cpu" else []
    failure: ConfigError | None = None
    for devices in placements(
        msgspec.structs.replace(recipe, task=_task(recipe, inputs)), model, found, num_cores()
    ):
        try:
            return _Planner(recipe, model, inputs, devices, process_bytes).plan(directory, run_directory)
        except ConfigError as error:
            # The next best may need less memory; if none does, what is wrong with the best is said.
            failure = failure or error
    assert failure is not None, "there is always a placement"
    raise failure


class _Planner:
    """One recipe on one machine."""

    def __init__(
        self, recipe: Recipe, model: ModelConfig, inputs: Inputs, devices: Devices, process_bytes: int
    ) -> None:
        self._recipe = recipe
        self._model = model
        self._inputs = inputs
        self._devices = devices
        self._process_bytes = process_bytes
        self._trainer: TrainerConfig = trainer_config(recipe)
        self._sequence_tokens = inputs.longest_prompt_tokens + inputs.max_new_tokens
        self._places = {each.name: each for each in _places(recipe, devices)}
        self._host = "cpu" if "cpu" in self._places else "host"
        self._entries: list[Entry] = []

    def plan(self, directory: Path, run_directory: str) -> RunPlan:
        self._add_processes()
        self._add_trainer()
        sized = self._add_engines()
        self._check_host()
        setup = self._setup(directory, run_directory, sized)
        return RunPlan(
            recipe=setup.header(),
            setup=setup,
            num_parameters=num_parameters(self._model),
            num_rows=self._inputs.num_rows,
            num_held_out=self._inputs.num_held_out,
            num_overlong=self._inputs.num_overlong,
            num_overlong_held_out=self._inputs.num_overlong_held_out,
            longest_prompt_tokens=self._inputs.longest_prompt_tokens,
            places=tuple(self._places.values()),
            memory=tuple(self._entries),
            disk=tuple(
                disk_entries(
                    self._model,
                    setup,
                    self._trainer,
                    self._sequence_tokens,
                    self._inputs.num_rows + self._inputs.num_held_out,
                )
            ),
            free_disk_bytes=free_disk_bytes(Path(run_directory).absolute()),
        )

    # --- memory ---

    def _add_processes(self) -> None:
        count = self._devices.instances + self._devices.trainer_ranks
        self._add(self._host, f"{count} processes with torch", count * self._process_bytes, is_estimate=True)

    def _add_trainer(self) -> None:
        ranks = self._devices.trainer_ranks
        for rank in range(ranks):
            self._add_rank(rank, "trainer" if ranks == 1 else f"trainer rank {rank}")
        # One process on CPUs writes what it has; others put it together, or copy it from the device.
        if self._host == "host" or (ranks > 1 and self._trainer.lora is None):
            size = checkpoint_bytes(self._model, self._trainer)
            self._add(self._host, f"trainer{' rank 0' if ranks > 1 else ''}: {_COPY}", size)
        if self._host == "cpu":
            self._check_trainer("cpu")

    def _add_rank(self, rank: int, name: str) -> None:
        place_name = self._devices.rank_device(rank)
        for what, size, is_estimate in trainer_bytes(
            self._model,
            self._trainer,
            longest_tokens=self._sequence_tokens,
            rank=rank,
            ranks=self._devices.trainer_ranks,
        ):
            self._add(place_name, f"{name}: {what}", size, is_estimate=is_estimate)
        self._check_trainer(place_name)

    def _check_trainer(self, place_name: str) -> None:
        if self._free(place_name) < 0:
            place = self._places[place_name]
            raise ConfigError(
                f"training {self._recipe.model} needs about {self._used(place_name) / _GIB:.1f} GiB on "
                f"{place_name}, which has {place.num_bytes / _GIB:.1f} GiB to use{place.note}",
                hint="set trainer.lora.rank=16, trainer.gradient_checkpointing=true or a smaller "
                "trainer.micro_batch_tokens, raise devices.trainer_ranks where there are GPUs for them, "
                "or use a smaller model",
            )

    def _add_engines(self) -> Sized:
        """All alike, sized for the place with the least room."""
        homes = [self._devices.instance_home(i) for i in range(self._devices.instances)]
        free, tightest = min((self._free(home) // homes.count(home), home) for home in homes)
        sized = size_engine(
            self._model,
            self._recipe,
            device="cpu" if homes[0] == "cpu" else "cuda",
            num_instances=len(homes),
            free_bytes=free,
            longest_prompt=self._inputs.longest_prompt_tokens,
            max_new_tokens=self._inputs.max_new_tokens,
            free_host_bytes=self._free("host") // len(homes) if self._host == "host" else None,
            note=self._places[tightest].note,
        )
        for instance, home in enumerate(homes):
            name = f"instance {instance}"
            self._add(home, f"{name}: {sized.engine.max_versions} versions", sized.versions_bytes)
            self._add(home, f"{name}: KV of {_kv_tokens(sized):,} tokens", sized.kv_bytes)
            self._add(home, f"{name}: workspace", sized.workspace_bytes)
            if sized.host_kv_bytes:
                self._add(self._host, f"{name}: KV on its way", sized.host_kv_bytes)
        return sized

    def _check_host(self) -> None:
        """Beside GPUs; where the host is the device it was checked as that."""
        if self._host == "host" and self._free("host") < 0:
            copies = sum(entry.num_bytes for entry in self._entries if entry.what.endswith(_COPY))
            place = self._places["host"]
            raise ConfigError(
                f"the run needs about {self._used('host') / _GIB:.1f} GiB of the host's memory, "
                f"{copies / _GIB:.1f} GiB of it for checkpoints; "
                f"{place.num_bytes / _GIB:.1f} GiB are to be had{place.note}",
                hint="set trainer.lora.rank=16, lower engine.host_kv_tokens or devices.instances, "
                "or use a smaller model",
            )

    def _add(self, place_name: str, what: str, size: int, *, is_estimate: bool = False) -> None:
        self._entries.append(Entry(place=place_name, what=what, num_bytes=size, is_estimate=is_estimate))

    def _used(self, place_name: str) -> int:
        return sum(each.num_bytes for each in self._entries if each.place == place_name)

    def _free(self, place_name: str) -> int:
        return self._places[place_name].num_bytes - self._used(place_name)

    # --- set-up ---

    def _setup(self, directory: Path, run_directory: str, sized: Sized) -> LiveSetup:
        recipe, inputs = self._recipe, self._inputs
        scoring = ScoringConfig(rewards=inputs.rewards, **msgspec.structs.asdict(recipe.scoring))
        return LiveSetup(
            run_directory=run_directory,
            model=str(directory),
            data=inputs.data,
            scoring=scoring,
            engine=sized.engine,
            max_new_tokens=inputs.max_new_tokens,
            steps=recipe.steps,
            seed=recipe.seed,
            warm_start=recipe.warm_start if recipe.warm_start.steps else None,
            batch=recipe.batch,
            control=recipe.control,
            trainer=self._trainer,
            sampling=recipe.sampling,
            stop_strings=recipe.response.stop_strings,
            devices=self._devices,
            evaluation=self._evaluation(),
            checkpoint_every_steps=recipe.checkpoints.every,
            kept_trainer_states=recipe.checkpoints.keep,
            recipe=self._header(),
        )

    def _evaluation(self) -> Evaluation | None:
        asked = self._recipe.evaluation
        if not asked.every:
            return None
        if not self._inputs.num_held_out:
            is_shared = bool(self._inputs.data.held_out_share)
            more = "give more than one row" if is_shared else "set data.held_out_share=0.1"
            raise ConfigError(
                f"evaluation.every = {asked.every}, but no rows are held out",
                hint=f"{more}, name data.held_out, or set evaluation.every=0",
            )
        rows = min(asked.max_rows or self._inputs.num_held_out, self._inputs.num_held_out)
        sampling = Sampling(temperature=0.0) if asked.greedy else self._recipe.sampling
        return Evaluation(every_steps=asked.every, prompts=rows, sampling=sampling)

    def _header(self) -> Recipe:
        """The recipe with what was found: so that the run can be simulated as it was."""
        recipe, inputs, instances = self._recipe, self._inputs, self._devices.instances
        cluster = msgspec.structs.replace(
            recipe.cluster,
            gpus=instances + self._devices.trainer_ranks,
            rollout_gpus=instances,
            elastic_gpus=0,
            tensor_parallel=1,
        )
        return msgspec.structs.replace(recipe, cluster=cluster, task=_task(recipe, inputs))


def _task(recipe: Recipe, inputs: Inputs) -> Task:
    """What the simulator is told of the rows: how long responses usually are is the recipe's to say."""
    lengths = recipe.task.lengths
    if isinstance(lengths, Lognormal):
        lengths = msgspec.structs.replace(lengths, min_tokens=1, max_tokens=inputs.max_new_tokens)
    return msgspec.structs.replace(
        recipe.task, rows=inputs.num_rows, prompt_tokens=inputs.mean_prompt_tokens, lengths=lengths
    )


def _own_bytes() -> int:
    """What Python and torch take by themselves, measured on this very process."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _places(recipe: Recipe, devices: Devices) -> Iterator[Place]:
    """Devices in use, with the share of what is free of them that a run may have."""
    share, asked = recipe.cluster.memory_share, recipe.devices.memory_gib
    if devices.trainer_device == "cpu":
        yield _place("cpu", share, asked, memory_bytes(), free_memory_bytes())
        return
    found: list[Gpu] = gpus()
    for index, gpu in enumerate(found):
        yield _place(f"cuda:{index}", share, asked, gpu.memory_bytes, gpu.usable_bytes)
    yield _place("host", share, None, memory_bytes(), free_memory_bytes())


def _place(name: str, share: float, asked_gib: float | None, total_bytes: int, free_bytes: int) -> Place:
    """What was asked for is taken at its word."""
    if asked_gib is not None:
        return Place(name=name, num_bytes=int(share * asked_gib * _GIB))
    note = ""
    if free_bytes < _MOSTLY_FREE * total_bytes:
        used = (total_bytes - free_bytes) / _GIB
        note = f", as others use {used:.1f} of the {total_bytes / _GIB:.1f} GiB there"
    return Place(name=name, num_bytes=int(share * free_bytes), note=note)


def _kv_tokens(sized: Sized) -> int:
    return sized.engine.limits.num_blocks * sized.engine.limits.block_size
