"""What a model is to this machine: who computes it and why, what memory that takes, what is refused of it.

Everything is found by asking those who plan a run, one setting after the other. Needs torch.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError, ModelError
from dora_rl.core.recipe import Batch, Recipe
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.recipe.trainer_config import LoraConfig
from dora_rl.core.record import Record
from dora_rl.engines.kinds import load_kind
from dora_rl.engines.protocol import EngineDemand
from dora_rl.model.config import ModelConfig, ModelSizes
from dora_rl.model.hf.hf_model import HfModel
from dora_rl.model.language_model import read_model
from dora_rl.prepare.device_placement import placements
from dora_rl.prepare.machine import gpus, num_cores
from dora_rl.prepare.model_choice import check_asked, computing_note, read_checked, with_computing
from dora_rl.prepare.model_directory import check_routers, model_directory
from dora_rl.prepare.planner import memory_limits, with_base
from dora_rl.prepare.run_memory import RunMemory
from dora_rl.prepare.run_plan import LedgerEntry, MemoryLimit
from dora_rl.prepare.trainer_memory import num_parameters

_TOKENS = 512
"""Tokens of prompts and of responses that memory is counted for, if the model has as many positions."""
_PASS_TOKENS = 2048
_BATCH = Batch(groups=8, group_size=8)
_ENOUGH = 2**60
"""Bytes of a device that has room for anything."""
LORA = "trainer.lora.rank=16"
_ASKED = (
    LORA,
    "trainer.compile=true",
    "trainer.attention=varlen",
    "trainer.attention=packed",
    "devices.trainer_ranks=2",
    "engine.batch_invariant=true",
    "engine.guessed_tokens=4",
)
"""What a recipe may ask of a model, and not every model has."""
_ASKED_OF_EXPERTS = ("trainer.load_balance=0.001", "trainer.router_replay=true")


class RefusedChoice(Record, frozen=True):
    """Something that this model or this machine does not have, and what to do about it."""

    what: str
    reason: str
    hint: str | None


class MemoryCount(Record, frozen=True):
    """The memory of a small run of the model, by what takes it."""

    settings: str
    """What differs from a plain recipe, as it is set; empty for all weights."""
    entries: tuple[LedgerEntry, ...]
    places: tuple[MemoryLimit, ...]

    def bytes_of(self, who: str) -> int:
        """Bytes of the trainer (`trainer`) or of one instance (`instance 0`), wherever they are."""
        return sum(each.num_bytes for each in self.entries if each.what.startswith(f"{who}:"))

    @property
    def short_of(self) -> MemoryLimit | None:
        """The first place that has less room than this takes; None if all have enough."""
        for place in self.places:
            if sum(each.num_bytes for each in self.entries if each.place == place.name) > place.num_bytes:
                return place
        return None


class ModelFacts(Record, frozen=True):
    """A model, who computes it here, and what it takes."""

    directory: str
    model_type: str
    num_parameters: int
    computing: str
    """Who trains and generates: `native` or `transformers`."""
    why: str
    """Why that is not the native decoder; empty where it is."""
    devices: tuple[str, ...]
    """Kinds of devices that an instance could be on, whether this machine has them or not."""
    memory: tuple[MemoryCount, ...]
    refused: tuple[RefusedChoice, ...]


def model_facts(name: str) -> ModelFacts:
    """Look at the model that a recipe would name so; a ModelError where it cannot be trained at all."""
    asked = replace(Recipe(), model=name, batch=_BATCH)
    directory, asked = with_base(model_directory(asked, has_weights=False), asked)
    recipe = with_computing(asked, directory)
    assert recipe.trainer.model != "auto", "it is known who computes"
    has_weights = any(directory.glob("*.safetensors"))
    # Of a model that is still in the hub its configuration is all there is to look at.
    model = read_checked(recipe, directory) if has_weights else read_model(directory, recipe.trainer.model)
    return ModelFacts(
        directory=str(directory),
        model_type=model.model_type if isinstance(model, HfModel) else model.family,
        num_parameters=num_parameters(model),
        computing=recipe.trainer.model,
        why=computing_note(recipe, model),
        devices=tuple(device for device in ("cpu", "cuda") if _why_not_on(recipe, model, device) is None),
        memory=tuple(_memory(recipe, model)),
        refused=tuple(_refused(asked, directory, model)),
    )


def _memory(recipe: Recipe, model: ModelConfig | HfModel) -> Iterator[MemoryCount]:
    """Count the memory of a run that trains all weights, and of one that trains low-rank changes."""
    kind = "cpu" if _why_not_on(recipe, model, "cuda") is not None else recipe.devices.kind
    small = replace(
        recipe,
        devices=replace(recipe.devices, kind=kind),
        response=replace(recipe.response, max_new_tokens=_tokens(model)),
        trainer=replace(recipe.trainer, micro_batch_tokens=_PASS_TOKENS),
    )
    low_rank = replace(small, trainer=replace(small.trainer, lora=LoraConfig()))
    for settings, each in (("", small), (LORA, low_rank)):
        if settings and recipe.trainer.lora is not None:
            return  # It is an adapter's own already.
        try:
            check_asked(each, model)
            devices = next(placements(each, model, gpus(), num_cores()))
            limits = tuple(memory_limits(each, devices))
            # With room for anything: how much there is, is for whoever reads it.
            unlimited = [replace(limit, num_bytes=_ENOUGH) for limit in limits]
            memory = RunMemory(each, model, devices, unlimited, _tokens(model))
            memory.add_trainer()
            memory.add_engines()
        except ConfigError:
            continue  # It is among what is refused, with its reason.
        yield MemoryCount(settings=settings, entries=tuple(memory.entries), places=limits)


def _tokens(model: ModelSizes) -> int:
    return min(_TOKENS, model.max_positions // 2)


def _why_not_on(recipe: Recipe, model: ModelSizes, device: str) -> ConfigError | ModelError | None:
    """Why no instance of the recipe's engine could be on a device, if none could."""
    demand = EngineDemand(
        model=model,
        recipe=recipe,
        device=device,
        num_instances=1,
        free_bytes=_ENOUGH,
        longest_prompt=_tokens(model),
        max_new_tokens=_tokens(model),
    )
    try:
        load_kind(recipe.engine.kind).size(demand)
    except (ConfigError, ModelError) as error:
        return error
    return None


def _refused(asked: Recipe, directory: Path, model: ModelConfig | HfModel) -> Iterator[RefusedChoice]:
    if (error := _why_not_on(with_computing(asked, directory), model, "cuda")) is not None:
        yield RefusedChoice(what="devices.kind=cuda", reason=error.message, hint=error.hint)
    for assignment in (*_ASKED, *(_ASKED_OF_EXPERTS if model.experts is not None else ())):
        try:
            recipe = with_computing(resolve_recipe(asked, [assignment]), directory)
            check_asked(recipe, model)
            check_routers(model, recipe)
            if (error := _why_not_on(recipe, model, "cpu")) is not None:
                raise error
        except (ConfigError, ModelError) as refused:
            yield RefusedChoice(what=assignment, reason=refused.message, hint=refused.hint)
