"""Paths in a recipe: from the recipe's directory if the file is there, else from the working directory.

Written out in full, so that a run can be resumed from anywhere, and processes may start where they like.
"""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dora_rl.core.recipe.algorithm import AlgorithmConfig, CustomAdvantageConfig
from dora_rl.core.recipe.data import DataConfig, RewardConfig, SourceConfig
from dora_rl.core.recipe.loss_configs import CustomLossConfig
from dora_rl.core.recipe.tree import BUILT_IN_MODELS, Recipe

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def anchored(recipe: Recipe, directory: Path) -> Recipe:
    """The recipe with every path that exists made absolute."""
    data = recipe.data
    return _replace(
        recipe,
        model=recipe.model if recipe.model in BUILT_IN_MODELS else _full(recipe.model, directory),
        data=None if data is None else _data(data, directory),
        engine=_replace(recipe.engine, kind=_object(recipe.engine.kind, directory)),
        rewards=tuple(_reward(reward, directory) for reward in recipe.rewards),
        algorithm=_algorithm(recipe.algorithm, directory),
        run=_replace(recipe.run, trackers=tuple(_object(name, directory) for name in recipe.run.trackers)),
    )


def _data(data: DataConfig, directory: Path) -> DataConfig:
    held_out = data.held_out
    return _replace(
        data,
        train=_source(data.train, directory),
        held_out=None if held_out is None else _source(held_out, directory),
        order=_replace(data.order, name=_object(data.order.name, directory)),
    )


def _source(source: SourceConfig, directory: Path) -> SourceConfig:
    options = {
        key: _full(value, directory) if key.endswith("path") and isinstance(value, str) else value
        for key, value in source.options.items()
    }
    return _replace(source, name=_object(source.name, directory), options=options)


def _reward(reward: RewardConfig, directory: Path) -> RewardConfig:
    # The label is part of the name as written; it must not change with the place.
    return _replace(reward, function=_object(reward.function, directory), name=reward.label)


def _algorithm(algorithm: AlgorithmConfig, directory: Path) -> AlgorithmConfig:
    loss, advantage = algorithm.loss, algorithm.advantage
    if isinstance(loss, CustomLossConfig):
        loss = _replace(loss, function=_object(loss.function, directory))
    if isinstance(advantage, CustomAdvantageConfig):
        advantage = _replace(advantage, function=_object(advantage.function, directory))
    return _replace(algorithm, loss=loss, advantage=advantage)


def _object(name: str, directory: Path) -> str:
    """A file's name, or the file in `file.py:object`, made absolute if the file exists."""
    file, colon, attribute = name.rpartition(":")
    if colon and file.endswith(".py"):
        return f"{_full(file, directory)}:{attribute}"
    # Without an ending it is the name of a task or a data set, whatever directory has the same name.
    return _full(name, directory) if Path(name).suffix else name


def _full(name: str, directory: Path) -> str:
    """A path made absolute from `directory`, or else from the working directory, where it exists."""
    for base in (directory, Path()):
        if name and (base / name).exists():
            return str((base / name).resolve())
    return name


def _replace(struct: _Struct, **changes: Any) -> _Struct:
    return msgspec.structs.replace(struct, **changes)
