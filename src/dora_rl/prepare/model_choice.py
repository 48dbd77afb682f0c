"""Who computes a model: the native decoder where it knows the family, else transformers, for both sides.

A version is its tensors by the names of whoever trains it, so the native engine serves what the native
trainer publishes, and transformers' engine what transformers trains.
"""

from pathlib import Path
from typing import get_args

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.trainer_config import TrainerSettings
from dora_rl.model.config import ModelConfig
from dora_rl.model.hf.hf_model import HfModel
from dora_rl.model.hub_config import why_not_native
from dora_rl.model.language_model import Computing, read_model
from dora_rl.model.load import check_weights
from dora_rl.model.shards import published_shapes
from dora_rl.trainer.lora import target_pieces

AUTO = "auto"
_BOTH: tuple[str, ...] = get_args(Computing)


def with_computing(recipe: Recipe, directory: Path) -> Recipe:
    """The recipe with who trains and who generates, where it left that open."""
    trains, generates = recipe.trainer.model, recipe.engine.kind
    if trains == AUTO:
        is_asked = generates in _BOTH
        is_native = generates == "native" if is_asked else why_not_native(directory / "config.json") is None
        trains = "native" if is_native else "transformers"
    if generates == AUTO:
        generates = trains
    if generates in _BOTH and generates != trains:
        raise ConfigError(
            f"engine.kind = {generates} does not serve what trainer.model = {trains} publishes: "
            "versions have other names",
            hint=f"set engine.kind={trains}, or leave both out",
        )
    _check_settings(recipe.trainer, trains)
    if trains == "transformers" and (recipe.devices.trainer_ranks or 1) > 1 and recipe.trainer.lora is None:
        raise ConfigError(
            "a model that transformers computes is not split over several trainer ranks",
            hint="set devices.trainer_ranks=1, or train low-rank changes: trainer.lora.rank=16",
        )
    return replace(
        recipe,
        trainer=replace(recipe.trainer, model=trains),
        engine=replace(recipe.engine, kind=generates),
    )


def _check_settings(asked: TrainerSettings, trains: str) -> None:
    """Refuse settings that whoever trains does not have."""
    kinds = ("auto", "padded", "packed") if trains == "transformers" else ("auto", "varlen", "flex", "packed")
    if asked.attention not in kinds:
        raise ConfigError(
            f"trainer.attention = {asked.attention} is not for a model that {trains} computes",
            hint=f"choose of {', '.join(kinds)}",
        )
    if trains == "transformers" and asked.compile:
        raise ConfigError(
            "trainer.compile = true compiles the native decoder, and transformers computes this model",
            hint="leave trainer.compile out",
        )


def read_checked(recipe: Recipe, directory: Path) -> ModelConfig | HfModel:
    """The model in a directory as the recipe has it computed, its weights looked at."""
    assert recipe.trainer.model != "auto", "it is known who computes"
    model = read_model(directory, recipe.trainer.model)
    if isinstance(model, ModelConfig):
        check_weights(directory)
    else:
        for _ in published_shapes(directory):
            pass  # A file that is missing or damaged is an error.
    check_asked(recipe, model)
    return model


def check_asked(recipe: Recipe, model: ModelConfig | HfModel) -> None:
    """Refuse packing and low-rank changes of a model that has nothing to pack or to change so."""
    if isinstance(model, HfModel) and model.why_whole is not None and recipe.trainer.attention == "packed":
        raise ConfigError(
            f"trainer.attention = packed is not for this model: {model.why_whole}",
            hint="leave trainer.attention out",
        )
    if recipe.trainer.lora is not None:
        target_pieces(model, recipe.trainer.lora)  # That none is there is an error.


def computing_note(recipe: Recipe, model: ModelConfig | HfModel) -> str:
    """Who computes the model and why, in words; empty where it is the native decoder."""
    if isinstance(model, ModelConfig):
        return ""
    why = why_not_native(Path(model.directory) / "config.json")
    reason = "as asked" if why is None else f"the native decoder does not know it: {why}"
    note = f"computed by transformers ({reason})"
    if model.why_whole is not None:
        return f"{note}; {model.why_whole}: not packed, and generated one sequence after the other"
    return note
