"""`count`: given n, write n, n-1, ... 0 and stop.

The length of a right answer is n's, and n is lognormal: most answers are short, a few very long, as in
real rollouts. Made for models of characters trained from nothing: every number has the same width (`12:`
-> `12 11 10 09 ...`), so that the next character depends on the three before it alone and no place value
has to be found by counting positions.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.envs.config import RewardConfig
from dora_rl.envs.rewards.texts import Completion, text_of
from dora_rl.envs.tasks.task import Task, numbered

_PREFIX_SHARE = 0.9


def count(
    *,
    seed: int,
    rows: int = 4096,
    held_out_rows: int = 256,
    median: float = 8.0,
    sigma: float = 0.7,
    max_n: int = 40,
    separator: str = " ",
) -> Task:
    """Rows with n in 1 .. max_n. Held-out rows are other draws; there are too few n to keep some unseen."""
    if max_n < 1 or median <= 0 or sigma < 0:
        raise UserError(
            f"count needs max_n >= 1, median > 0 and sigma >= 0, not {max_n}, {median} and {sigma}"
        )
    width = len(str(max_n))

    def table(part: str, num_rows: int) -> Iterator[dict[str, Any]]:
        rng = random.Random(f"count {part} {seed}")
        for _ in range(num_rows):
            n = _drawn(rng, median, sigma, max_n)
            yield {"prompt": f"{n:0{width}d}:", "solution": countdown(n, width, separator), "n": n}

    return Task(
        name="count",
        train=numbered(table("train", rows), "count"),
        held_out=numbered(table("held out", held_out_rows), "count"),
        rewards=(RewardConfig(function="count_reward"),),
        # And the token that ends it.
        max_new_tokens=len(countdown(max_n, width, separator)) + 1,
    )


def countdown(n: int, width: int, separator: str) -> str:
    """The answer: n .. 0, zero-padded."""
    return separator.join(f"{number:0{width}d}" for number in range(n, -1, -1))


def count_reward(completions: Sequence[Completion], solution: Sequence[str], **columns: Any) -> list[float]:
    """1 for the solution, else 0.9 times the share of it that the completion begins with.

    A completion that goes on after the solution has the whole solution as its beginning, and 0.9.
    """
    return [_partial(text_of(given), wanted) for given, wanted in zip(completions, solution, strict=True)]


def _partial(given: str, wanted: str) -> float:
    if given == wanted:
        return 1.0
    agreeing = next((i for i, (a, b) in enumerate(zip(given, wanted, strict=False)) if a != b), None)
    num_right = min(len(given), len(wanted)) if agreeing is None else agreeing
    return _PREFIX_SHARE * num_right / len(wanted)


def _drawn(rng: random.Random, median: float, sigma: float, max_n: int) -> int:
    # Drawn again rather than cut, so that no n is piled up at the end.
    while not 1 <= (n := round(rng.lognormvariate(math.log(median), sigma))) <= max_n:
        pass
    return n
