"""`letters`: `d>k:` -> `defghijk`, all letters from one to another, and stop.

How many there are is lognormal: most answers are short, a few have the whole alphabet. Pairs of letters are
kept back, so held-out rows ask for something that was never trained on.

Each row also has a `demonstration` for a warm start, by a teacher who is sloppy: now and then it repeats or
leaves out a letter. A model that imitates it knows what is asked and seldom gets all of it right; the reward
teaches that.
"""

import math
import random
import string
from collections.abc import Iterator
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.data.rows import read_rows
from dora_rl.envs.tasks.task import Task

LETTERS = string.ascii_lowercase


def letters(
    *,
    seed: int,
    rows: int = 4096,
    held_out_rows: int = 256,
    median: float = 7.0,
    sigma: float = 0.8,
    sloppiness: float = 0.35,
) -> Task:
    """The task `letters`: rows with a lognormal number of letters.

    `sloppiness` is the share of the teacher's steps that are wrong.
    """
    if not (1 <= median <= len(LETTERS) and 0 <= sigma <= 3 and 0 <= sloppiness < 1):
        raise UserError(
            f"letters cannot draw with median = {median}, sigma = {sigma}, sloppiness = {sloppiness}",
            hint=f"give 1 <= median <= {len(LETTERS)}, 0 <= sigma <= 3 and 0 <= sloppiness < 1",
        )

    def table(part: str, num_rows: int) -> Iterator[dict[str, Any]]:
        rng = random.Random(f"letters {part} {seed}")
        while num_rows:
            first, last = _drawn(rng, median, sigma)
            if _is_held_out(first, last) == (part == "held out"):
                yield _row(first, last, _demonstration(rng, first, last, sloppiness))
                num_rows -= 1

    return Task(
        name="letters",
        train=read_rows(table("train", rows), {}, "letters"),
        held_out=read_rows(table("held out", held_out_rows), {}, "letters"),
        rewards=(RewardConfig(function="exact_match"),),
        # A few more than the alphabet and the token that ends it: who repeats himself should see the end.
        max_new_tokens=len(LETTERS) + 7,
    )


def _row(first: int, last: int, demonstration: str) -> dict[str, Any]:
    return {
        "prompt": f"{LETTERS[first]}>{LETTERS[last]}:",
        "solution": LETTERS[first : last + 1],
        "demonstration": demonstration,
    }


def _drawn(rng: random.Random, median: float, sigma: float) -> tuple[int, int]:
    # Drawn again rather than cut, so that no length is piled up at the end.
    while not 1 <= (distance := round(rng.lognormvariate(math.log(median), sigma))) < len(LETTERS):
        pass
    first = rng.randrange(len(LETTERS) - distance)
    return first, first + distance


def _is_held_out(first: int, last: int) -> bool:
    """Whether a pair of letters is held out: one in about seven, none that begins near the end."""
    return first < len(LETTERS) - 5 and (11 * first + 5 * last * last + 3 * first * last) % 7 == 0


def _demonstration(rng: random.Random, first: int, last: int, sloppiness: float) -> str:
    place, shown = first, [first]
    while place < last:
        step = rng.choice((0, 2)) if rng.random() < sloppiness else 1
        place = min(last, place + step)
        shown.append(place)
    return "".join(LETTERS[each] for each in shown)
