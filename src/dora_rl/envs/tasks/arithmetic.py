"""`arithmetic`: sums and products of small integers.

The held-out problems are never trained on: the possible problems are shuffled and divided, and rows are
drawn from the two parts.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.data.rows import read_rows
from dora_rl.envs.tasks.task import Task

_SIGNS = {"+": lambda a, b: a + b, "*": lambda a, b: a * b}
_HELD_OUT_SHARE = 0.1

Problem = tuple[int, str, int]


def arithmetic(
    *,
    seed: int,
    rows: int = 4096,
    held_out_rows: int = 256,
    max_operand: int = 20,
    signs: Sequence[str] = ("+", "*"),
    chat: bool = False,
) -> Task:
    """The task `arithmetic`: `3+4=` to be completed, or a question in words for a chat model."""
    for sign in signs:
        if sign not in _SIGNS:
            raise UserError(f"arithmetic knows no sign '{sign}'", hint=f"signs: {', '.join(_SIGNS)}")
    train, held_out = _divided(max_operand, tuple(signs), seed)

    def table(problems: list[Problem], part: str, num_rows: int) -> Iterator[dict[str, Any]]:
        rng = random.Random(f"arithmetic {part} {seed}")
        for _ in range(num_rows):
            yield _columns(rng.choice(problems), chat)

    return Task(
        name="arithmetic",
        train=read_rows(table(train, "train", rows), {}, "arithmetic"),
        held_out=read_rows(table(held_out, "held out", held_out_rows), {}, "arithmetic"),
        rewards=(RewardConfig(function="accuracy_reward" if chat else "exact_match"),),
        max_new_tokens=128 if chat else len(str(max_operand**2)) + 2,
    )


def _divided(max_operand: int, signs: tuple[str, ...], seed: int) -> tuple[list[Problem], list[Problem]]:
    numbers = range(max_operand + 1)
    problems = list(product(numbers, signs, numbers))
    random.Random(f"arithmetic problems {seed}").shuffle(problems)
    num_held_out = max(1, round(_HELD_OUT_SHARE * len(problems)))
    if num_held_out >= len(problems):
        raise UserError("arithmetic has too few problems to hold one out", hint="raise max_operand")
    return problems[num_held_out:], problems[:num_held_out]


def _columns(problem: Problem, chat: bool) -> dict[str, Any]:
    a, sign, b = problem
    question = f"What is {a} {sign} {b}? Answer with the number only."
    prompt = [{"role": "user", "content": question}] if chat else f"{a}{sign}{b}="
    return {"prompt": prompt, "solution": str(_SIGNS[sign](a, b))}
