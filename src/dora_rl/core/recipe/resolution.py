"""Files, names and overrides become one Recipe.

A tree may say less than a Recipe: `algorithm` may be a preset's name, or a preset and what differs from it;
a learning rate that falls may leave out when it has fallen; a reward may be the name of its function alone,
and so may the order of the rows; a group of one keeps one member. `expand` fills these in, so that the recipe
a run leaves behind needs no preset to be read.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import is_place
from dora_rl.core.recipe.presets import preset
from dora_rl.core.recipe.recipe_paths import anchored
from dora_rl.core.recipe.shipped import find_recipe
from dora_rl.core.recipe.tree import Recipe
from dora_rl.core.struct_loader import Tree, assigned, build, load_yaml, split_assignment, to_dict

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
