"""`textworld:NAME`: text games that the package textworld makes, each from a seed of its own.

A row is a kind of game, its level and a seed; the game is made when it is first played, kept in a directory
of the user's cache, and played by textworld's own interpreter. Held-out rows have other seeds. An answer is a
command, the reward is the share of the game's score that is reached.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import did_you_mean, optional_module
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.envs.data.rows import Row, read_rows
from dora_rl.envs.tasks.task import Task

_LEVELS = {"coin_collector": 300, "treasure_hunter": 30}
"""Kinds of games, and the highest level of each."""
_INSTRUCTIONS = {
    "numbered": "You play a text game. Answer with the number of a command, and with nothing else.\n\n",
    "listed": "You play a text game. Answer with one of the commands, and with nothing else.\n\n",
    "hidden": "You play a text game. Answer with a command, and with nothing else.\n\n",
}
"""How commands that are possible are shown, and what the policy is told about its answers."""
_SEED_STRIDE = 1_000_003
_LARGEST_SEED = 2**31 - 1
_PROMPT_LINE = re.compile(r"\n>.*", re.DOTALL)
_NUMBER = re.compile(r"\d+")
_BLANK_LINES = re.compile(r"\s*\n\s*\n\s*")
_ONE_AT_A_TIME = Lock()
"""The package keeps what it parses and makes in globals: its games take turns in a process."""


def textworld(
    *,
    seed: int,
    name: str = "coin_collector",
    level: int | Sequence[int] = 3,
    rows: int = 256,
    held_out_rows: int = 64,
    max_steps: int = 12,
    commands: str = "numbered",
) -> Task:
    """The task `textworld:NAME`: games of one kind, of one level or of the levels from the first to the last.

    `commands` says how those that are possible are shown at each step: `numbered`, `listed` or `hidden`. What
    the game counts as its goal is said at its beginning.
    """
    _package()
    lowest, highest = (level, level) if isinstance(level, int) else (level[0], level[-1])
    if name not in _LEVELS:
        raise UserError(f"there is no game '{name}'", hint=did_you_mean(name, list(_LEVELS), "games"))
    if commands not in _INSTRUCTIONS:
        raise UserError(
            f"commands cannot be '{commands}'", hint=did_you_mean(commands, list(_INSTRUCTIONS), "they are")
        )
    if not 1 <= lowest <= highest <= _LEVELS[name]:
        raise UserError(
            f"{name} has no levels from {lowest} to {highest}", hint=f"levels: 1 to {_LEVELS[name]}"
        )

    def table(first: int, count: int) -> Iterator[dict[str, Any]]:
        for number in range(first, first + count):
            game = {"kind": name, "level": lowest + number % (highest - lowest + 1)}
            yield {**game, "game_seed": (seed * _SEED_STRIDE + number) % _LARGEST_SEED}

    def read(first: int, count: int) -> list[Row]:
        return read_rows(table(first, count), {}, "textworld", needs_prompt=False) if count else []

    return Task(
        name=f"textworld:{name}",
        train=read(held_out_rows, rows),
        held_out=read(0, held_out_rows),
        rewards=(),
        max_new_tokens=16,
        episode=EpisodeSettings(
            function="gym",
            options={
                "make": f"{__name__}:open_game",
                "observation": f"{__name__}:{commands}",
                "prompt": _INSTRUCTIONS[commands],
                "max_steps": max_steps,
                "is_score": True,
            },
            max_turns=max_steps,
            max_context_tokens=2048,
            # A process makes games one after the other, and many may be asked for at the beginning.
            start_limit_s=600.0,
        ),
    )


class TextWorldGame:
    """One game in gym's form of four values; a step returns the share of the score that is reached so far."""

    def __init__(self, path: Path) -> None:
        """Open the game in this file."""
        package = _package()
        wanted = package.EnvInfos(admissible_commands=True, objective=True, description=True, max_score=True)
        with _ONE_AT_A_TIME:
            self._game = package.start(str(path), wanted)
        self._possible: Sequence[str] = ()

    def reset(self) -> tuple[str, Mapping[str, Any]]:
        """Begin the game: its goal, and where one stands."""
        with _ONE_AT_A_TIME:
            state = self._game.reset()
        self._possible = state.admissible_commands
        return f"{state.objective.strip()}\n\n{_tidy(state.description)}", state

    def step(self, answer: str) -> tuple[str, float, bool, Mapping[str, Any]]:
        """Give the game the command that an answer means."""
        with _ONE_AT_A_TIME:
            state, score, is_over = self._game.step(meant(answer, self._possible))
        self._possible = state.admissible_commands
        return _tidy(state.feedback), score / max(1, state.max_score or 1), bool(is_over), state

    def close(self) -> None:
        """End the interpreter of the game."""
        self._game.close()


def open_game(kind: str, level: int, game_seed: int) -> TextWorldGame:
    """The game of a row, made now if it was not before."""
    package = _package()
    place = _cache() / f"{kind}-{level}-{game_seed}.z8"
    # Two processes may make the same game; the one that is later puts the same in its place.
    with _ONE_AT_A_TIME:
        if not (place.exists() and place.with_suffix(".json").exists()):
            _make(package, kind, level, game_seed, place)
    return TextWorldGame(place)


def numbered(observation: str, info: Mapping[str, Any]) -> str:
    """What is shown, and the commands that are possible, with their numbers."""
    lines = (f"{number}. {command}" for number, command in enumerate(info["admissible_commands"], 1))
    return "\n".join((observation, "", *lines))


def listed(observation: str, info: Mapping[str, Any]) -> str:
    """What is shown, and the commands that are possible."""
    return f"{observation}\n\nCommands: {', '.join(info['admissible_commands'])}"


def hidden(observation: str, info: Mapping[str, Any]) -> str:
    """What is shown, alone."""
    return observation


def meant(answer: str, possible: Sequence[str]) -> str:
    """The command that an answer means: a possible one by itself or by its number, else its first line."""
    first = answer.strip().partition("\n")[0].strip().strip(">.`\"' ").lower()
    if first in possible:
        return first
    number = _NUMBER.match(first)
    if number is not None and 1 <= int(number[0]) <= len(possible):
        return possible[int(number[0]) - 1]
    return first


def _make(package: Any, kind: str, level: int, game_seed: int, place: Path) -> None:
    options = package.GameOptions()
    options.seeds = game_seed
    made = place.with_name(f"{place.stem}.{os.getpid()}.z8")
    options.path, options.force_recompile = str(made), True
    challenge = optional_module(
        f"textworld.challenges.tw_{kind}.{kind}", needed_for="the task textworld", install="textworld"
    )
    game = challenge.make({"level": level}, options)
    package.generator.compile_game(game, options)
    for suffix in (".z8", ".json"):
        made.with_suffix(suffix).replace(place.with_suffix(suffix))
    made.with_suffix(".ni").unlink(missing_ok=True)


def _cache() -> Path:
    """Where games are kept; of another version of the package they may be others."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = base / "dora-rl" / f"textworld-{version('textworld')}"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _tidy(text: str) -> str:
    """A game's text without its prompt and status line, and with no more than one blank line."""
    return _BLANK_LINES.sub("\n\n", _PROMPT_LINE.sub("", text)).strip()


def _package() -> Any:
    return optional_module("textworld", needed_for="a game of textworld", install="textworld")
