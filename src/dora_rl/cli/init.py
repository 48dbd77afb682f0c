"""`dora init`: a directory with a recipe and a reward function that work as they are."""

import json
from pathlib import Path
from typing import Annotated

import typer

from dora_rl.core.errors import UserError

_RECIPE = """\
# Write the letters that follow a letter, judged by rewards.py.
#
#   dora train recipe.yaml              run it
#   dora train recipe.yaml --dry-run    what it resolves to, and what it will need
#   dora report runs/recipe-1           what came of it
#
# Everything left out has a default; --set key=value changes one value for one run.
model: tiny                             # or a directory in Hugging Face format, or smollm2
steps: 30                               # train steps
batch: {groups: 8, group_size: 16}      # prompts of a step, and responses to each

data:
  train: {name: rows.jsonl}             # rows with a `prompt`, and columns for the reward
  held_out_share: 0.1                   # for evaluation
rewards:
  - {function: rewards.py:lower_case, weight: 0.5}
  - {function: rewards.py:right_letters, weight: 1.0}

response: {max_new_tokens: 10}
sampling: {temperature: 1.0}
algorithm: grpo                         # or dapo, rloo, gspo, ...: `docs/recipes.md`
optimizer: {learning_rate: 5e-3}
trainer: {serving_dtype: float32, micro_batch_tokens: 4096}

control: {max_staleness: 2}             # how many versions old a trained response may be at most
cluster: {slots: 64}                    # responses generated at once
scoring: {processes: 1}
evaluation: {every: 10}
checkpoints: {every: 10}
"""

_REWARDS = '''\
"""Rewards: functions of completions and of the columns of the rows, a list of numbers out.

`completions` are strings where prompts are strings. Every other column of the rows comes under its own
name, here `solution`. None says that a reward does not apply.
"""


def lower_case(completions, **columns):
    """The share of lower-case letters: easy, and a first step towards the right ones."""
    return [sum("a" <= letter <= "z" for letter in text) / max(1, len(text)) for text in completions]


def right_letters(completions, solution, **columns):
    """The share of the solution that the completion begins with; 1 needs the end in the right place too."""
    return [_score(given, wanted) for given, wanted in zip(completions, solution, strict=True)]


def _score(given, wanted):
    if given == wanted:
        return 1.0
    right = 0
    for a, b in zip(given, wanted):
        if a != b:
            break
        right += 1
    return 0.9 * right / len(wanted)
'''

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def init(
    directory: Annotated[Path, typer.Argument(help="A directory that does not exist, or is empty.")],
) -> None:
    """Write a starter recipe, a reward function and some rows; `dora train DIR/recipe.yaml` runs them."""
    _write_starter(directory)
    typer.echo(f"wrote recipe.yaml, rewards.py and rows.jsonl into {directory}")
    typer.echo(f"next: dora train {directory / 'recipe.yaml'}")


def _write_starter(directory: Path) -> None:
    """Write a starter recipe, its reward and its rows; an error if the directory is not empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} exists and is not empty", hint="choose another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "recipe.yaml").write_text(_RECIPE, encoding="utf-8")
        (directory / "rewards.py").write_text(_REWARDS, encoding="utf-8")
        (directory / "rows.jsonl").write_text(_rows(), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {directory}: {error.strerror}", hint="choose another place") from error


def _rows() -> str:
    """The starter's rows: a letter such as `c:`, to be completed by the six that follow."""
    starts = range(len(_LETTERS) - 6)
    rows = [{"prompt": f"{_LETTERS[at]}:", "solution": _LETTERS[at + 1 : at + 7]} for at in starts]
    return "".join(f"{json.dumps(row)}\n" for row in rows)
