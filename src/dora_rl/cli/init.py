"""`dora init`: a directory with a recipe and a reward function, or an episode, that work as they are."""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from dora_rl.cli import agent_starter
from dora_rl.core.errors import UserError

_RECIPE = """\
# Write the alphabet backwards, from one letter down to another, judged by rewards.py: `h<d:` wants `hgfed`.
#
#   dora train recipe.yaml              run it: one to two minutes on two CPU cores
#   dora train recipe.yaml --dry-run    what it resolves to, and what it will need
#   dora report runs/recipe-1           what came of it
#
# Everything left out has a default; --set key=value changes one value for one run.
model: tiny                             # or a directory in Hugging Face format, or smollm2
steps: 120                              # train steps
batch: {groups: 32, group_size: 8}      # prompts of a step, and responses to each

data:
  train: {name: rows.jsonl}             # rows with a `prompt`, and columns for the reward
  held_out: {name: held_out.jsonl}      # other rows, for evaluation: these are never trained on
rewards:
  - {function: rewards.py:right, weight: 1.0}
  - {function: rewards.py:close, weight: 0.5}

# `tiny` has random weights, so it is first shown the column `demonstration`: answers of a sloppy teacher, of
# which a third is right. The rewards teach the rest. A model that knows its language needs no such line.
warm_start: {steps: 300, update_rows: 32, rate: 3e-3}

response: {max_new_tokens: 16}
sampling: {temperature: 1.0}
algorithm: grpo                         # or dapo, rloo, gspo, ...: `docs/recipes.md`
optimizer: {learning_rate: 1e-3, beta2: 0.99}
trainer: {serving_dtype: float32}

control: {max_staleness: 2}             # how many versions old a trained response may be at most
scoring: {processes: 1}                 # processes that judge
evaluation: {every: 20, greedy: false}
checkpoints: {every: 60}
"""

_REWARDS = '''\
"""Rewards: functions of completions and of the columns of the rows, a list of numbers out.

`completions` are strings where prompts are strings. Every other column of the rows comes under its own
name, here `solution`. None says that a reward does not apply.
"""


def right(completions, solution, **columns):
    """1 for exactly the solution, else 0."""
    return [float(given == wanted) for given, wanted in zip(completions, solution, strict=True)]


def close(completions, solution, **columns):
    """The share of places with the right letter; too long an answer has wrong ones at its end."""
    return [_agreement(given, wanted) for given, wanted in zip(completions, solution, strict=True)]


def _agreement(given, wanted):
    same = sum(a == b for a, b in zip(given, wanted))
    return same / max(len(given), len(wanted))
'''

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LONGEST, _NUM_ROWS, _SLOPPINESS = 11, 1500, 0.3


def init(
    directory: Annotated[Path, typer.Argument(help="A directory that does not exist, or is empty.")],
    agent: Annotated[
        bool, typer.Option("--agent", help="An agent with a tool that is trained over several turns.")
    ] = False,
) -> None:
    """Write a starter recipe, a reward function and some rows; `dora train DIR/recipe.yaml` runs them."""
    files = agent_starter.FILES if agent else _FILES
    _write_starter(directory, files)
    typer.echo(f"wrote {', '.join(files)} into {directory}")
    typer.echo(f"next: dora train {directory / 'recipe.yaml'}")


def _write_starter(directory: Path, files: Mapping[str, Callable[[], str]]) -> None:
    """Write the files of a starter; an error if the directory is not empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} exists and is not empty", hint="choose another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, make in files.items():
            (directory / name).write_text(make(), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {directory}: {error.strerror}", hint="choose another place") from error


def _train_rows() -> str:
    """Rows to train on: pairs of letters, often the same one, each time with another demonstration."""
    rng = random.Random("starter")
    pairs = [pair for pair in _pairs() if not _is_held_out(*pair)]
    return _lines(_row(*rng.choice(pairs), rng) for _ in range(_NUM_ROWS))


def _held_out_rows() -> str:
    """Rows for evaluation: the pairs of letters that no row to train on has, each once."""
    rng = random.Random("starter, held out")
    return _lines(_row(*pair, rng) for pair in _pairs() if _is_held_out(*pair))


def _pairs() -> Iterator[tuple[int, int]]:
    """Every pair of a letter and one further down, by their places in the alphabet."""
    for first in range(1, len(_LETTERS)):
        for last in range(max(0, first - _LONGEST), first):
            yield first, last


def _is_held_out(first: int, last: int) -> bool:
    return (7 * first + 3 * last * last + 5 * first * last) % 5 == 0


def _row(first: int, last: int, rng: random.Random) -> dict[str, str]:
    place, shown = first, [first]
    while place > last:
        # The teacher is sloppy: now and then it repeats a letter or leaves one out.
        step = rng.choice((0, 2)) if rng.random() < _SLOPPINESS else 1
        place = max(last, place - step)
        shown.append(place)
    return {
        "prompt": f"{_LETTERS[first]}<{_LETTERS[last]}:",
        "solution": _LETTERS[last : first + 1][::-1],
        "demonstration": "".join(_LETTERS[each] for each in shown),
    }


def _lines(rows: Iterable[dict[str, str]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


_FILES: dict[str, Callable[[], str]] = {
    "recipe.yaml": lambda: _RECIPE,
    "rewards.py": lambda: _REWARDS,
    "rows.jsonl": _train_rows,
    "held_out.jsonl": _held_out_rows,
}
