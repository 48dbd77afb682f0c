"""A user's own objects in a recipe: `object:LABEL` stands for a function that was given instead of named.

A recipe is plain data, so what was given travels beside it: as cloudpickle's bytes to the worker that calls
it, never into a file. Cloudpickle takes functions of a notebook, a REPL and `__main__`, lambdas and closures
along by value. What cannot be packed (it holds a lock, a socket, a model on a GPU) is known before anything
starts, with the reason.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import OBJECT
from dora_rl.core.recipe import Recipe

STREAM = "the rows"
"""Kind, and label, of a stream of rows: a label that no function's name can be."""
_TOO_LARGE = 64 * 2**20
"""Bytes of a packed object from which on a mistake is likelier than a wish."""


class UserObjects:
    """Functions by label, as they were given."""

    def __init__(self) -> None:
        self._given: dict[str, Any] = {}
        self._kinds: dict[str, str] = {}

    def add(self, given: Any, *, kind: str) -> str:
        """Keep an object; returns the name that stands for it in the recipe."""
        label = STREAM if kind == STREAM else _free(_label(given, kind), self._given)
        self._given[label], self._kinds[label] = given, kind
        return f"{OBJECT}{label}"

    def __bool__(self) -> bool:
        return bool(self._given)

    def packed(self) -> tuple[dict[str, bytes], dict[str, str]]:
        """The bytes of each object that can be sent to another process, and why the others cannot."""
        sent: dict[str, bytes] = {}
        kept: dict[str, str] = {}
        for label, given in self._given.items():
            try:
                content = _pickled(given)
            except Exception as error:  # whatever an object of the user's does when it is packed
                kept[label] = f"{type(error).__name__}: {error}"
                continue
            if len(content) > _TOO_LARGE:
                kept[label] = f"it is {len(content) / 2**20:,.0f} MiB with everything it refers to"
            else:
                sent[label] = content
        return sent, kept

    def of(self, label: str) -> Any:
        """The object itself that a label stands for."""
        return self._given[label]

    def check_sent(self, kept: Mapping[str, str]) -> None:
        """Refuse an object that cannot be sent where the caller's process cannot call it."""
        for label, reason in kept.items():
            if self._kinds[label] != "reward":
                of_episodes = self._kinds[label] == "episode"
                what = f"the {self._kinds[label]} '{label}'"
                where = "the processes that episodes run in" if of_episodes else "the trainer's process"
                hint = "have it refer to plain data only, or put it in a file and name it file.py:name"
                if self._kinds[label] == STREAM:
                    what, where = "the stream of rows", "the process that reads it"
                    hint = (
                        "give the function that yields rows, data=rows and not data=rows(), or file.py:rows"
                    )
                raise UserError(f"{what} cannot be sent to {where}: {reason}", hint=hint)

    def check_complete(self, recipe: Recipe) -> None:
        """Refuse to go on without objects that a recipe names."""
        missing = [
            f"{name.removeprefix(OBJECT)} ({where})"
            for name, where in _named_in(recipe)
            if name.startswith(OBJECT) and name.removeprefix(OBJECT) not in self._given
        ]
        if missing:
            raise UserError(
                f"the run was started from Python with objects that are not here: {', '.join(missing)}",
                hint="go on from Python and give them again: dora_rl.resume(RUN, rewards=[...], data=...)",
            )


def objects_named(given: Mapping[str, Any]) -> UserObjects:
    """The functions among rewards, loss, advantage and episode, labelled as when a run starts with them."""
    objects = UserObjects()
    rewards = given.get("rewards")
    for entry in rewards if isinstance(rewards, list | tuple) else [rewards]:
        function = entry.get("function") if isinstance(entry, Mapping) else entry
        function = function[0] if isinstance(function, tuple) else function
        if callable(function):
            objects.add(function, kind="reward")
    for kind in ("loss", "advantage", "episode"):
        function = given.get(kind)
        function = function.get("function") if isinstance(function, Mapping) else function
        if callable(function):
            objects.add(function, kind=kind)
    if given.get("data") is not None:
        objects.add(given["data"], kind=STREAM)
    return objects


def _named_in(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """The names of functions in a recipe, each with the key it stands under."""
    if recipe.data is not None and recipe.data.train.stream:
        yield recipe.data.train.name, "data"
    yield from ((reward.function, "rewards") for reward in recipe.rewards)
    if recipe.episode is not None:
        yield recipe.episode.function, "episode"
    for kind in ("loss", "advantage"):
        function = getattr(getattr(recipe.algorithm, kind), "function", None)
        if function is not None:
            yield function, f"algorithm.{kind}"


def _pickled(given: Any) -> bytes:
    import cloudpickle

    content: bytes = cloudpickle.dumps(given)
    return content


def _label(given: Any, kind: str) -> str:
    name = getattr(given, "__name__", None) or type(given).__name__
    return kind if name == "<lambda>" else str(name)


def _free(label: str, taken: Mapping[str, Any]) -> str:
    number = 2
    found = label
    while found in taken:
        found, number = f"{label}_{number}", number + 1
    return found
