"""Files, names and overrides become one Recipe.

A tree may say less than a Recipe: `algorithm` may be a preset's name, or a preset and what differs from it;
a learning rate that falls may leave out when it has fallen; a reward may be the name of its function alone,
and so may the order of the rows; a group of one keeps one member. `expand` fills these in, so that the recipe
a run leaves behind needs no preset to be read.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import is_place
from dora_rl.core.recipe.algorithm import AlgorithmConfig, CustomAdvantageConfig
from dora_rl.core.recipe.data import DataConfig, RewardConfig, SourceConfig
from dora_rl.core.recipe.loss_configs import CustomLossConfig
from dora_rl.core.recipe.presets import preset
from dora_rl.core.recipe.tree import BUILT_IN_MODELS, Recipe
from dora_rl.core.struct_loader import Tree, assigned, build, load_yaml, split_assignment, to_dict

_DIRECTORY = Path(str(files("dora_rl"))) / "recipes"
_SUFFIXES = (".yaml", ".yml")
_PRESET_KEYS = ("preset", "algorithm.preset")
_LETTERS = {
    "S": "control.max_staleness",
    "R": "control.active_groups",
    "B": "batch.groups",
    "G": "batch.group_size",
}
"""Recipe keys that the documentation calls by a letter, by that letter."""


def resolve_recipe(name: str | None, assignments: Sequence[str] = ()) -> Recipe:
    """The recipe in a file or shipped under a name, with overrides applied; for None the defaults."""
    _check_letters(assignments)
    tree, directory, source = recipe_tree(name)
    values = dict(split_assignment(text) for text in assignments)
    return recipe_of(with_values(tree, values), directory, f"{source}{' with --set' if values else ''}")


def recipe_tree(name: str | None) -> tuple[Tree, Path, str]:
    """A recipe's tree, the directory its paths start from, and its name in errors."""
    if name is None:
        return {}, Path(), "recipe"
    path = find_recipe(name)
    return with_preset_keys(load_yaml(path)), path.parent, str(path)


def with_values(tree: Tree, values: Mapping[str, Any]) -> Tree:
    """A copy of the tree with keys set, by any unambiguous end of their paths; the last preset wins."""
    others = {key: value for key, value in values.items() if key not in _PRESET_KEYS}
    changed = assigned(with_preset_keys(tree), others, Recipe)
    for key in _PRESET_KEYS:
        if key in values:
            changed["algorithm"] = _as_mapping(changed.get("algorithm", {})) | {"preset": values[key]}
    return changed


def recipe_of(tree: Tree, directory: Path, source: str) -> Recipe:
    """The recipe that a tree describes; `source` names it in errors, its paths start from `directory`."""
    return anchored(build(Recipe, expand(tree), source), directory)


def _check_letters(assignments: Sequence[str]) -> None:
    for assignment in assignments:
        letter = assignment.partition("=")[0]
        if letter in _LETTERS:
            raise ConfigError(f"unknown key '{letter}'", hint=f"did you mean '{_LETTERS[letter]}'?")


def with_preset_keys(tree: Tree) -> Tree:
    """The tree with a named algorithm, and a named loss or advantage of it, written as mappings.

    Overrides can then add to them.
    """
    algorithm = _as_mapping(tree.get("algorithm"))
    if not isinstance(algorithm, dict):
        return tree
    named = {key: algorithm[key] for key in ("loss", "advantage") if isinstance(algorithm.get(key), str)}
    return tree | {"algorithm": algorithm | {key: _as_section(name) for key, name in named.items()}}


def _as_section(name: str) -> Tree:
    """The section of a loss or an advantage given by name: a built-in kind, or a place of the user's own."""
    return {"kind": "custom", "function": name} if is_place(name) else {"kind": name}


def expand(tree: Tree) -> Tree:
    """The tree with its presets written out and its short forms filled in."""
    tree = with_preset_keys(tree)
    algorithm = tree.get("algorithm")
    if isinstance(algorithm, dict) and "preset" in algorithm:
        own = {key: value for key, value in algorithm.items() if key != "preset"}
        tree = tree | {"algorithm": laid_over(to_dict(preset(str(algorithm["preset"]))), own)}
    return _with_total_updates(_with_min_members(_with_rewards(_with_order(tree))))


def laid_over(base: Tree, top: Tree) -> Tree:
    """The tree `top` laid over `base`, section by section; a section of another kind replaces the whole."""
    if top.get("kind", base.get("kind")) != base.get("kind"):
        return top
    laid = base | top
    for key in base.keys() & top.keys():
        if isinstance(base[key], dict) and isinstance(top[key], dict):
            laid[key] = laid_over(base[key], top[key])
    return laid


def _as_mapping(algorithm: Any) -> Any:
    return {"preset": algorithm} if isinstance(algorithm, str) else algorithm


def _with_rewards(tree: Tree) -> Tree:
    given = tree.get("rewards")
    entries = [given] if isinstance(given, str) else given
    if not isinstance(entries, list):
        return tree
    return tree | {"rewards": [{"function": entry} if isinstance(entry, str) else entry for entry in entries]}


def _with_order(tree: Tree) -> Tree:
    match tree:
        case {"data": {"order": str(name)} as data}:
            return tree | {"data": data | {"order": {"name": name}}}
    return tree


def _with_min_members(tree: Tree) -> Tree:
    """The tree with `min_members` lowered to a group size of one, where nobody set it."""
    match tree:
        case {"control": {"min_members": _}}:
            return tree
        case {"batch": {"group_size": 1}}:
            control = tree.get("control") or {}
            return tree | {"control": control | {"min_members": 1}} if isinstance(control, dict) else tree
    return tree


def _with_total_updates(tree: Tree) -> Tree:
    match tree:
        case {"optimizer": {"learning_rate_schedule": {"kind": "linear" | "cosine"} as schedule}}:
            total_updates = _total_updates(tree)
        case _:
            return tree
    if schedule.get("total_updates") is not None or total_updates is None:
        return tree
    return laid_over(tree, {"optimizer": {"learning_rate_schedule": {"total_updates": total_updates}}})


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
    data = recipe.data
    return replace(
        recipe,
        model=recipe.model if recipe.model in BUILT_IN_MODELS else _full(recipe.model, directory),
        data=None if data is None else _data(data, directory),
        engine=replace(recipe.engine, kind=_object(recipe.engine.kind, directory)),
        rewards=tuple(_reward(reward, directory) for reward in recipe.rewards),
        algorithm=_algorithm(recipe.algorithm, directory),
        run=replace(recipe.run, trackers=tuple(_object(name, directory) for name in recipe.run.trackers)),
    )


def _data(data: DataConfig, directory: Path) -> DataConfig:
    held_out = data.held_out
    return replace(
        data,
        train=_source(data.train, directory),
        held_out=None if held_out is None else _source(held_out, directory),
        order=replace(data.order, name=_object(data.order.name, directory)),
    )


def _source(source: SourceConfig, directory: Path) -> SourceConfig:
    options = {
        key: _full(value, directory) if key.endswith("path") and isinstance(value, str) else value
        for key, value in source.options.items()
    }
    return replace(source, name=_object(source.name, directory), options=options)


def _reward(reward: RewardConfig, directory: Path) -> RewardConfig:
    # The label is part of the name as written; it must not change with the place.
    return replace(reward, function=_object(reward.function, directory), name=reward.label)


def _algorithm(algorithm: AlgorithmConfig, directory: Path) -> AlgorithmConfig:
    loss, advantage = algorithm.loss, algorithm.advantage
    if isinstance(loss, CustomLossConfig):
        loss = replace(loss, function=_object(loss.function, directory))
    if isinstance(advantage, CustomAdvantageConfig):
        advantage = replace(advantage, function=_object(advantage.function, directory))
    return replace(algorithm, loss=loss, advantage=advantage)


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


def find_recipe(name: str) -> Path:
    """The recipe file that a user names by its path, or by the name of a shipped one."""
    path, shipped = Path(name), shipped_recipes()
    if path.is_file():
        return path
    if name in shipped:
        return shipped[name]
    if path.suffix in _SUFFIXES or path.is_dir():
        raise ConfigError(f"there is no recipe file {name}", hint=f"shipped recipes: {', '.join(shipped)}")
    near = get_close_matches(name, shipped, n=1)
    known = f"shipped recipes: {', '.join(shipped)}; or give a file"
    raise ConfigError(
        f"there is no recipe named '{name}'", hint=f"did you mean '{near[0]}'?" if near else known
    )
