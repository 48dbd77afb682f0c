"""`count`: count down to 0 and stop.

The length of a right answer is that of the count, and n is lognormal: most answers are short, a few very
long, as in real rollouts. Two notations:

    characters   `c` -> `ba9876543210`: a number is one character, and the prompt is the count's first
    decimal      `Count down from 12 to 0: ` -> `12 11 10 ... 0`, for models that know numbers

The first is for character models trained from nothing: each character depends on the one before it alone, the
prompt's included, so nothing has to be copied, carried or found by position, and what is learned from short
counts holds for long ones.
"""

import math
import random
import string
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from dora_rl.core.errors import UserError
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.data.rows import read_rows
from dora_rl.envs.rewards.texts import Completion, text_of
from dora_rl.envs.tasks.task import Task

SYMBOLS = string.digits + string.ascii_lowercase + string.ascii_uppercase
"""The numbers 0 .. 61 as single characters, by value."""
_PREFIX_SHARE = 0.9


def count(
    *,
    seed: int,
    rows: int = 4096,
    held_out_rows: int = 256,
    median: float = 8.0,
    sigma: float = 0.7,
    max_n: int = 30,
    notation: Literal["characters", "decimal"] = "characters",
) -> Task:
    """The task `count`: rows with n in 1 .. max_n.

    Held-out rows are other draws; there are too few n to keep some unseen.
    """
    _check(median, sigma, max_n, notation)
    columns = _in_characters if notation == "characters" else _in_decimal

    def table(part: str, num_rows: int) -> Iterator[dict[str, Any]]:
        rng = random.Random(f"count {part} {seed}")
        for _ in range(num_rows):
            n = _drawn(rng, median, sigma, max_n)
            yield {**columns(n), "n": n}

    return Task(
        name="count",
        train=read_rows(table("train", rows), {}, "count"),
        held_out=read_rows(table("held out", held_out_rows), {}, "count"),
        rewards=(RewardConfig(function="count_reward"),),
        # And the token that ends it.
        max_new_tokens=len(columns(max_n)["solution"]) + 1,
    )


def count_reward(completions: Sequence[Completion], solution: Sequence[str], **columns: Any) -> list[float]:
    """1 for the solution, else 0.9 times the share of it that the completion begins with.

    A completion that goes on after the solution has the whole solution as its beginning, and 0.9.
    """
    return [_partial(text_of(given), wanted) for given, wanted in zip(completions, solution, strict=True)]


def _partial(given: str, wanted: str) -> float:
    if given == wanted:
        return 1.0
    pairs = zip(given, wanted, strict=False)
    first_wrong = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    num_right = min(len(given), len(wanted)) if first_wrong is None else first_wrong
    return _PREFIX_SHARE * num_right / len(wanted)


def _in_characters(n: int) -> dict[str, Any]:
    return {"prompt": SYMBOLS[n], "solution": SYMBOLS[:n][::-1]}


def _in_decimal(n: int) -> dict[str, Any]:
    return {
        "prompt": f"Count down from {n} to 0: ",
        "solution": " ".join(str(number) for number in range(n, -1, -1)),
    }


def _drawn(rng: random.Random, median: float, sigma: float, max_n: int) -> int:
    # Drawn again rather than cut, so that no n is piled up at the end.
    while not 1 <= (n := round(rng.lognormvariate(math.log(median), sigma))) <= max_n:
        pass
    return n


def _check(median: float, sigma: float, max_n: int, notation: str) -> None:
    if notation not in ("characters", "decimal"):
        raise UserError(f"count has no notation '{notation}'", hint="it is 'characters' or 'decimal'")
    if notation == "characters" and max_n >= len(SYMBOLS):
        raise UserError(
            f"count has {len(SYMBOLS)} characters for numbers, too few for max_n = {max_n}",
            hint=f"set max_n to at most {len(SYMBOLS) - 1}, or notation: decimal",
        )
    # Otherwise drawing until a number fits could take for ever.
    if not (0 < median <= max_n and 0 <= sigma <= 3):
        raise UserError(
            f"count cannot draw with median = {median}, sigma = {sigma}, max_n = {max_n}",
            hint="give 0 < median <= max_n and 0 <= sigma <= 3",
        )
