"""Keywords of a call become a Recipe, and the objects that stand beside it.

    train("demo", steps=20)                                    a recipe by name or path, and what differs
    train(model="dir", data=rows, rewards=[f], steps=50)       no recipe at all
    train(model=..., data=..., num_generations=8, beta=0.0)    TRL's names

A keyword is a key of the recipe (a section as a mapping, or any unambiguous end of a path), or a name of
TRL's. Where a recipe has the name of something, the thing itself may stand: rows, functions, a loaded model.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dora_rl.api.loaded_models import LoadedModel, lora_section
from dora_rl.api.objects import STREAM, UserObjects
from dora_rl.core.errors import ConfigError
from dora_rl.core.named import OBJECT
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.aliases import translated
from dora_rl.core.recipe.data import MIXTURE, PartConfig
from dora_rl.core.recipe.resolution import Base, anchored, resolve_recipe
from dora_rl.core.struct_loader import Tree, to_dict
from dora_rl.envs.adapters.trl_environment import EnvironmentEpisode
from dora_rl.envs.tasks.task import Task

_RENAMED = {
    "reward_funcs": "rewards",
    "train_dataset": "data",
    "eval_dataset": "held_out",
    "processing_class": "tokenizer",
}
"""TRL's names of arguments that may be objects, and ours for them."""

_OBJECTS = (
    "model",
    "tokenizer",
    "data",
    "held_out",
    "rewards",
    "reward_weights",
    "loss",
    "advantage",
    "episode",
    "environment_factory",
    "tools",
    "peft_config",
)
"""Arguments that may be objects instead of names."""


class Asked:
    """What a call asked for: a recipe, and the objects that names in it stand for."""

    def __init__(
        self, base: Base, given: Mapping[str, Any], name: str | None = None, others: Sequence[Any] = ()
    ) -> None:
        """`others` were given by position behind the recipe, where nothing may be."""
        if others or not isinstance(base, str | Path | Recipe | Mapping | None):
            raise ConfigError(
                "only a recipe may be given by position",
                hint="give model, rows and rewards as keywords: train(model=..., data=..., rewards=[...])",
            )
        self.objects = UserObjects()
        """Functions that were given instead of named, by label."""
        self.tables: dict[str, Iterable[Any]] = {}
        """Rows, by the name that stands for them in the recipe."""
        self.model: LoadedModel | None = None
        """A loaded model that was given instead of a path; None where a path or name was."""
        self.name = name or _name(base)
        """The name that the run's directory is called after."""
        renamed = {_RENAMED.get(key, key): value for key, value in given.items()}
        # What may be an object is not given where it is None; of a key of the recipe, None is a value.
        settings = {key: value for key, value in renamed.items() if value is not None or key not in _OBJECTS}
        if isinstance(base, Recipe) and not settings:
            # Whole already: there is nothing to lay over it.
            self.recipe = anchored(base, Path())
            return
        settings = with_environment_factory(settings)
        tokenizer, weights = settings.pop("tokenizer", None), settings.pop("reward_weights", None)
        values = self._objects_named(settings, weights)
        if isinstance(model := settings.get("model"), str | Path) or model is None:
            if tokenizer is not None:
                raise ConfigError(
                    "a tokenizer was given without a loaded model",
                    hint="save it beside the model: tokenizer.save_pretrained(DIRECTORY)",
                )
        else:
            self.model = LoadedModel(model, tokenizer)
            values["model"] = f"{OBJECT}model"
        _refuse_contradictions(settings)
        self.recipe = resolve_recipe(base, values=values)

    def _objects_named(self, settings: Mapping[str, Any], weights: Sequence[float] | None) -> Tree:
        """The settings as plain values, with the name of each object in its place."""
        values: Tree = {}
        for name, value in settings.items():
            match name:
                case "model":
                    values["model"] = str(value)
                case "data":
                    values |= self._data(value)
                case "held_out":
                    values["data.held_out"] = self._table(value, "held_out")
                case "rewards":
                    values["rewards"] = self._rewards(value, weights)
                case "loss" | "advantage":
                    values[f"algorithm.{name}"] = self._algorithm_part(name, value)
                case "episode":
                    values["episode"] = self._episode(value)
                case "peft_config":
                    values["trainer.lora"] = lora_section(value)
                case _:
                    # Of all settings: what one of TRL's names means may depend on the others.
                    found = translated(name, value, settings)
                    values |= {name: _plain(value)} if found is None else found
        return values

    def _data(self, given: Any) -> Tree:
        if isinstance(given, Task):
            return self._task(given)
        if isinstance(given, Mapping):
            if "prompt" in given:
                raise ConfigError(
                    "data is a mapping of columns, not rows",
                    hint="give a list of mappings with a 'prompt', or datasets.Dataset.from_dict(columns)",
                )
            # The recipe's own section, in which a source may be a table of rows.
            section = {key: _plain(value) for key, value in given.items() if key not in ("train", "held_out")}
            if given.get("train") is not None:
                section["train"] = self._train(given["train"])
            if given.get("held_out") is not None:
                section["held_out"] = self._table(given["held_out"], "held_out")
            return {"data": section}
        return {"data.train": self._train(given)}

    def _train(self, given: Any) -> Any:
        """The rows trained on: one table, a list of several, or a stream."""
        _check_no_texts(given)
        if isinstance(given, list | tuple) and given and all(map(_is_table, given)):
            parts = [self._part(entry, f"rows_{number}") for number, entry in enumerate(given)]
            return {"name": MIXTURE, "parts": parts}
        section = given if isinstance(given, Mapping) else {"name": given}
        rows, is_asked_for = section.get("name"), bool(section.get("stream"))
        if _is_stream(rows) or (is_asked_for and not isinstance(rows, str | Path)):
            others = {key: _plain(value) for key, value in section.items() if key != "name"}
            return others | {"name": self.objects.add(rows, kind=STREAM), "stream": True}
        return self._table(given, "rows")

    def _part(self, given: Any, label: str) -> Tree:
        match given:
            case (table, int() | float() as weight):
                return self._part(table, label) | {"weight": float(weight)}
        return self._table(given, label)

    def _task(self, task: Task) -> Tree:
        tables = {"rows": task.train, "held_out": task.held_out}
        for label, rows in tables.items():
            self.tables[f"{OBJECT}{label}"] = [
                ({} if row.prompt is None else {"prompt": row.prompt}) | row.columns for row in rows
            ]
        values: Tree = {"data.train": {"name": f"{OBJECT}rows"}}
        if task.held_out:
            values["data.held_out"] = {"name": f"{OBJECT}held_out"}
        if task.episode is not None:
            values["episode"] = to_dict(task.episode)
        if task.max_new_tokens is not None:
            values["response.max_new_tokens"] = task.max_new_tokens
        return values | {"rewards": [to_dict(reward) for reward in task.rewards]}

    def _table(self, given: Any, label: str) -> Tree:
        """The section of one table of rows, whose `name` may be the rows themselves."""
        if isinstance(given, str | Path):
            return {"name": str(given)}
        if isinstance(given, msgspec.Struct):
            return to_dict(given)
        if isinstance(given, Mapping):
            others = {key: _plain(value) for key, value in given.items() if key != "name"}
            return (self._table(given["name"], label) if "name" in given else {}) | others
        if not isinstance(given, Iterable):
            raise ConfigError(
                f"data is no table of rows but {type(given).__name__}",
                hint="give a path, a list of mappings with a 'prompt', an iterable of them, or a data set",
            )
        self.tables[f"{OBJECT}{label}"] = given
        return {"name": f"{OBJECT}{label}"}

    def _rewards(self, given: Any, weights: Sequence[float] | None) -> list[Tree]:
        entries = list(given) if isinstance(given, list | tuple) else [given]
        if weights is not None and len(weights) != len(entries):
            raise ConfigError(f"{len(weights)} reward_weights for {len(entries)} rewards", hint="one each")
        sections = [self._reward(entry) for entry in entries]
        for section, weight in zip(sections, weights or (), strict=False):
            section["weight"] = float(weight)
        return sections

    def _reward(self, entry: Any) -> Tree:
        match entry:
            case str() if Path(entry).is_dir():
                # As in TRL, where a string names a reward model.
                return {"function": "reward_model", "name": Path(entry).name, "options": {"model": entry}}
            case str():
                return {"function": entry}
            case msgspec.Struct():
                return to_dict(entry)
            case Mapping():
                section = dict(entry)
                if callable(function := section.get("function")):
                    named = self._reward(function)
                    return named | section | {"function": named["function"]}
                return section
            case (function, weight):
                return self._reward(function) | {"weight": float(weight)}
        if hasattr(entry, "save_pretrained"):
            raise ConfigError(
                "a loaded reward model cannot be sent to the processes that score",
                hint="save it and its tokenizer, and give the directory: rewards=[DIRECTORY]",
            )
        if not callable(entry):
            raise ConfigError(
                f"a reward is a function, a name, (function, weight) or a mapping, not {entry!r:.80}",
                hint="give the function itself, without calling it: rewards=[my_reward]",
            )
        name = self.objects.add(entry, kind="reward")
        return {"function": name, "name": name.removeprefix(OBJECT)}

    def _episode(self, given: Any) -> Any:
        """The recipe's section about episodes, or the function alone, by name or itself."""
        section = dict(given) if isinstance(given, Mapping) else {"function": given}
        if callable(section.get("function")):
            section["function"] = self.objects.add(section["function"], kind="episode")
        return _plain(section)

    def _algorithm_part(self, kind: str, given: Any) -> Any:
        if callable(given) and not isinstance(given, msgspec.Struct):
            return {"kind": "custom", "function": self.objects.add(given, kind=kind)}
        return _plain(given)


def with_environment_factory(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with an episode in the place of TRL's `environment_factory` and `tools`."""
    settings = dict(given)
    factory, tools = settings.pop("environment_factory", None), settings.pop("tools", ())
    if factory is None and not tools:
        return settings
    if settings.get("episode") is not None:
        raise ConfigError(
            "environment_factory, tools and episode all say what is played",
            hint="give one of them: episode=from_environment(CLASS, tools=[...])",
        )
    settings["episode"] = EnvironmentEpisode(factory, tools=tools)
    if factory is not None:
        # As in TRL: an environment may make its tasks itself.
        settings.setdefault("data", "seeds")
    return settings


def _refuse_contradictions(settings: Mapping[str, Any]) -> None:
    """Refuse an argument of TRL's beside a keyword that gives the same key another value."""
    for name, value in settings.items():
        for path, meant in (translated(name, value, settings) or {}).items():
            for other, given in settings.items():
                if other != name and (said := _said(other, given, path)) and said[0] != meant:
                    raise ConfigError(
                        f"{name} = {value!r} makes {path} {meant!r}, and {other} says {said[0]!r}",
                        hint="give one of the two",
                    )


def _said(keyword: str, given: Any, path: str) -> tuple[Any] | None:
    """The value that a keyword of the recipe gives to a key, in a tuple; None where it gives it none."""
    if f".{path}".endswith(f".{keyword}"):
        return (given,)
    section, _, rest = path.partition(".")
    if keyword == section and isinstance(given, Mapping):
        for key in rest.split("."):
            if not isinstance(given, Mapping) or key not in given:
                return None
            given = given[key]
        return (given,)
    return None


def plain_values(settings: Mapping[str, Any]) -> Tree:
    """Keywords that are keys of the recipe, or TRL's names, as values by key."""
    values: Tree = {}
    for name, value in settings.items():
        found = translated(name, value, settings)
        values |= {name: _plain(value)} if found is None else found
    return values


def _is_stream(given: Any) -> bool:
    """Whether an object gives rows as they are needed: a function, or an IterableDataset of `datasets`."""
    names = {base.__name__ for base in type(given).__mro__}
    return "IterableDataset" in names or (callable(given) and not isinstance(given, Iterable))


def _is_table(entry: Any) -> bool:
    """Whether an entry of a list is a table of rows, perhaps with a weight, as against a row."""
    match entry:
        case (table, int() | float()):
            return _is_table(table)
        case Mapping():
            return "name" in entry and set(entry) <= set(PartConfig.__struct_fields__)
    return isinstance(entry, str | Path | msgspec.Struct | Iterable)


def _name(base: Base) -> str:
    return Path(base).stem if isinstance(base, str | Path) else "run"


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_unknown)


def _unknown(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Callable):  # type: ignore[arg-type]
        raise ConfigError(
            f"{value!r:.80} cannot stand here", hint="functions may be rewards, episode, loss, advantage"
        )
    raise ConfigError(f"{value!r:.80} is no plain value", hint="use numbers, strings, lists and mappings")


def _check_no_texts(given: Any) -> None:
    """Refuse a list of prompts: strings in a list name tables, and no table's name is a sentence."""
    texts = [entry for entry in given if isinstance(entry, str)] if isinstance(given, list | tuple) else []
    if sentence := next((text for text in texts if " " in text and not Path(text).exists()), None):
        raise ConfigError(
            f"data has the text {sentence!r:.80} where a row or the name of a table should be",
            hint="a row is a mapping: {'prompt': text}, with columns for the rewards",
        )
