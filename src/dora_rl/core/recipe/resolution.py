"""Files, names and overrides become one Recipe.

A tree may say less than a Recipe: `algorithm` may be a preset's name, or a preset and what differs from it;
a learning rate that falls may leave out when it has fallen; a reward may be the name of its function alone,
and so may the order of the rows or a table of them; several tables may be a list; a group of one keeps one
member. `recipe_of` fills these in, so that the recipe a run leaves behind needs no preset to be read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import is_place
from dora_rl.core.recipe.algorithm import CustomAdvantageConfig
from dora_rl.core.recipe.data import MIXTURE, RewardConfig, TableConfig
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.core.recipe.loss_configs import CustomLossConfig
from dora_rl.core.recipe.peer_names import suggestion
from dora_rl.core.recipe.presets import preset
from dora_rl.core.recipe.trainer_config import TrainerSettings
from dora_rl.core.recipe.tree import BUILT_IN_MODELS, Recipe
from dora_rl.core.recipe.unused_keys import check_schedule
from dora_rl.core.struct_loader import Tree, assigned, build, split_assignment, to_dict
from dora_rl.core.yaml_text import load_yaml

Base = str | Path | Recipe | Mapping[str, Any] | None
"""What a recipe starts from: a recipe's name or file, a Recipe, a tree, or the defaults."""

AnyTable = TypeVar("AnyTable", bound=TableConfig)

_DIRECTORY = Path(str(files("dora_rl"))) / "recipes"
_SUFFIXES = (".yaml", ".yml")
_PRESET_KEYS = ("preset", "algorithm.preset")
_NAMED_KEYS = ("data.train", "data.held_out", "held_out", "data.order", "order")
"""Sections that a name alone may stand for."""
_UNKNOWN = re.compile(r"unknown key '([^']+)'$")
_LETTERS = {
    "S": "control.max_staleness",
    "R": "control.active_groups",
    "B": "batch.groups",
    "G": "batch.group_size",
}
"""Recipe keys that the documentation calls by a letter, by that letter."""


def resolve_recipe(
    base: Base, assignments: Sequence[str] = (), values: Mapping[str, Any] | None = None
) -> Recipe:
    """The recipe in a file or shipped under a name, or the one given, and what differs from it.

    What differs are assignments `key=value` of a user, or values by key; for None they are the whole.
    """
    for assignment in assignments:
        letter = assignment.partition("=")[0]
        if letter in _LETTERS:
            raise ConfigError(f"unknown key '{letter}'", hint=f"did you mean '{_LETTERS[letter]}'?")
    directory, source = Path(), "recipe" if base is not None or values is None else "the arguments"
    match base:
        case Recipe():
            tree = to_dict(base)
        case str() | Path():
            path, shipped = Path(base), shipped_recipes()
            if not path.is_file():
                if str(base) not in shipped:
                    raise _no_recipe(str(base), list(shipped))
                path = shipped[str(base)]
            tree, directory, source = load_yaml(path), path.parent, str(path)
        case _:
            tree = dict(base or {})
    source = f"{source} with --set" if assignments else source
    changes = dict(map(split_assignment, assignments)) | dict(values or {})
    return anchored(recipe_of(tree, changes, source), directory)


def with_sections(tree: Tree) -> Tree:
    """The tree with names that stand for a section written as one: of an algorithm, a loss, rows, an order.

    Overrides can then add to them.
    """
    if isinstance(data := tree.get("data"), dict | str):
        tree = tree | {"data": _data_section(data)}
    algorithm = tree.get("algorithm")
    if isinstance(algorithm, str):
        algorithm = {"preset": algorithm}
    if not isinstance(algorithm, dict):
        return tree
    named = {key: algorithm[key] for key in ("loss", "advantage") if isinstance(algorithm.get(key), str)}
    # A built-in kind, or a place of the user's own.
    sections = {
        key: {"kind": "custom", "function": name} if is_place(name) else {"kind": name}
        for key, name in named.items()
    }
    return tree | {"algorithm": algorithm | sections}


def recipe_of(tree: Tree, values: Mapping[str, Any], source: str) -> Recipe:
    """The recipe that a tree describes, its presets written out and its short forms filled in.

    `values` are set in it first, by any unambiguous end of their paths. `source` names the tree in errors.
    """
    others = {
        key: {"name": value} if key in _NAMED_KEYS and isinstance(value, str) else value
        for key, value in values.items()
        if key not in _PRESET_KEYS
    }
    with _hints_for_peers_names(others):
        # Before, so that values can add to them, and after, as a value may be such a name.
        tree = with_sections(assigned(with_sections(tree), others, Recipe))
    algorithm = tree.get("algorithm") or {}
    for key in _PRESET_KEYS:
        if key in values:
            algorithm = algorithm | {"preset": values[key]}
    if isinstance(algorithm, dict) and "preset" in algorithm:
        own = {key: value for key, value in algorithm.items() if key != "preset"}
        tree = tree | {"algorithm": laid_over(to_dict(preset(str(algorithm["preset"]))), own)}

    rewards = tree.get("rewards")
    rewards = [rewards] if isinstance(rewards, str) else rewards
    if isinstance(rewards, list):
        named = [{"function": entry} if isinstance(entry, str) else entry for entry in rewards]
        tree = tree | {"rewards": named}

    # A group of one keeps one member, where nobody set how many.
    match tree:
        case {"control": {"min_members": _}}:
            pass
        case {"batch": {"group_size": 1}} if isinstance(control := tree.get("control") or {}, dict):
            tree = tree | {"control": control | {"min_members": 1}}

    match tree:
        case {"optimizer": {"learning_rate_schedule": {"kind": "linear" | "cosine"} as schedule}}:
            if schedule.get("total_updates") is None and (total := _total_updates(tree)) is not None:
                falling = {"learning_rate_schedule": {"total_updates": total}}
                tree = laid_over(tree, {"optimizer": falling})
    with _hints_for_peers_names(tree):
        recipe = build(Recipe, tree, source)
    check_schedule(recipe)
    return recipe


@contextmanager
def _hints_for_peers_names(given: Mapping[str, Any]) -> Iterator[None]:
    """Where an unknown key is a setting of another trainer, the hint is what to write instead."""
    try:
        yield
    except ConfigError as error:
        if unknown := _UNKNOWN.search(error.message):
            error.hint = suggestion(unknown[1], given.get(unknown[1])) or error.hint
        raise


def laid_over(base: Tree, top: Tree) -> Tree:
    """The tree `top` laid over `base`, section by section; a section of another kind replaces the whole."""
    if top.get("kind", base.get("kind")) != base.get("kind"):
        return top
    laid = base | top
    for key in base.keys() & top.keys():
        if isinstance(base[key], dict) and isinstance(top[key], dict):
            laid[key] = laid_over(base[key], top[key])
    return laid


def _data_section(data: Tree | str) -> Tree:
    """The section about rows, with names and lists that stand for tables, and for an order, written out."""
    section: Tree = {"train": data} if isinstance(data, str) else dict(data)
    for key in ("train", "held_out", "order"):
        if isinstance(name := section.get(key), str):
            section[key] = {"name": name}
    if isinstance(tables := section.get("train"), list):
        parts = [{"name": table} if isinstance(table, str) else table for table in tables]
        section["train"] = {"name": MIXTURE, "parts": parts}
    return section


def _total_updates(tree: Tree) -> int | None:
    """Optimizer updates of the whole run; None where the tree is wrong, which building it reports better."""
    batch = tree.get("batch", {})
    updates = batch.get("updates", 1) if isinstance(batch, dict) else None
    steps = tree.get("steps", _default("steps"))
    return steps * updates if isinstance(steps, int) and isinstance(updates, int) else None


def _default(name: str) -> Any:
    return next(field.default for field in msgspec.structs.fields(Recipe) if field.name == name)


# --- paths ----------------------------------------------------------------------------------------
#
# From the recipe's directory if the file is there, else from the working directory. Written out in full, so
# that a run can be resumed from anywhere, and processes may start where they like.


def anchored(recipe: Recipe, directory: Path) -> Recipe:
    """The recipe with every path that exists made absolute."""

    def table(given: AnyTable) -> AnyTable:
        options = {
            key: _full(value, directory) if key.endswith("path") and isinstance(value, str) else value
            for key, value in given.options.items()
        }
        name = given.name
        # A data set elsewhere is `owner/name` too: what is here wins.
        is_path = "/" in name and ":" not in name
        found = _full(name, directory) if is_path else _object(name, directory)
        return replace(given, name=found, options=options)

    data, algorithm = recipe.data, recipe.algorithm
    if data is not None:
        data = replace(
            data,
            train=replace(
                table(data.train),
                parts=tuple(
                    # The label is part of the name as written; it must not change with the place.
                    replace(table(part), label=part.source_label)
                    for part in data.train.parts
                ),
            ),
            held_out=None if data.held_out is None else table(data.held_out),
            order=replace(data.order, name=_object(data.order.name, directory)),
        )
    loss, advantage = algorithm.loss, algorithm.advantage
    if isinstance(loss, CustomLossConfig):
        loss = replace(loss, function=_object(loss.function, directory))
    if isinstance(advantage, CustomAdvantageConfig):
        advantage = replace(advantage, function=_object(advantage.function, directory))
    return replace(
        recipe,
        model=recipe.model if recipe.model in BUILT_IN_MODELS else _full(recipe.model, directory),
        data=data,
        engine=replace(recipe.engine, kind=_object(recipe.engine.kind, directory)),
        rewards=tuple(
            # The label is part of the name as written; it must not change with the place.
            replace(
                reward,
                function=_object(reward.function, directory),
                name=reward.label,
                options=_reward_options(reward, directory),
            )
            for reward in recipe.rewards
        ),
        episode=None if recipe.episode is None else _anchored_episode(recipe.episode, directory),
        algorithm=replace(algorithm, loss=loss, advantage=advantage),
        trainer=_with_full_adapter(recipe.trainer, directory),
        run=replace(recipe.run, trackers=tuple(_object(name, directory) for name in recipe.run.trackers)),
    )


def _anchored_episode(episode: EpisodeSettings, directory: Path) -> EpisodeSettings:
    """An episode with its file, and every Python file that its options name, made absolute."""

    def full(value: Any) -> Any:
        match value:
            case str() if value.partition(":")[0].endswith(".py"):
                return _object(value, directory)
            case list():
                return [full(each) for each in value]
            case dict():
                return {key: full(each) for key, each in value.items()}
        return value

    return replace(episode, function=_object(episode.function, directory), options=full(episode.options))


def _reward_options(reward: RewardConfig, directory: Path) -> dict[str, Any]:
    """The options of a reward; the directory of a reward model made absolute if it exists."""
    model = reward.options.get("model")
    if reward.function == "reward_model" and isinstance(model, str):
        return {**reward.options, "model": _full(model, directory)}
    return reward.options


def _with_full_adapter(trainer: TrainerSettings, directory: Path) -> TrainerSettings:
    if trainer.lora is None or trainer.lora.adapter is None:
        return trainer
    return replace(trainer, lora=replace(trainer.lora, adapter=_full(trainer.lora.adapter, directory)))


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


# --- recipes by what a user types -----------------------------------------------------------------


def shipped_recipes() -> dict[str, Path]:
    """Files of the recipes that come with the package, by name."""
    return {path.stem: path for path in sorted(_DIRECTORY.glob("*.yaml"))}


def summary_of(path: Path) -> str:
    """The first line of a recipe: a comment that says what it is."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()


def _no_recipe(name: str, shipped: list[str]) -> ConfigError:
    """The error for a recipe that is neither a file nor shipped."""
    if name in BUILT_IN_MODELS or (Path(name) / "config.json").is_file():
        return ConfigError(
            f"'{name}' is a model, not a recipe",
            hint=f"a recipe names it, its rows and rewards (`dora init DIR` writes one): --set model={name}",
        )
    if Path(name).is_dir():
        inside = next((path for suffix in _SUFFIXES for path in sorted(Path(name).glob(f"*{suffix}"))), None)
        return ConfigError(
            f"{name} is a directory, not a recipe",
            hint=f"give the file: {inside}"
            if inside
            else "a recipe is a YAML file; `dora init DIR` writes one",
        )
    if Path(name).suffix in _SUFFIXES:
        return ConfigError(f"there is no recipe file {name}", hint=f"shipped recipes: {', '.join(shipped)}")
    near = get_close_matches(name, shipped, n=1)
    known = f"shipped recipes: {', '.join(shipped)}; or give a file"
    return ConfigError(
        f"there is no recipe named '{name}'", hint=f"did you mean '{near[0]}'?" if near else known
    )
