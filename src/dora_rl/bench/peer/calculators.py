"""The calculator as an environment class in TRL's form, quick and slow: both systems play the same.

A call's latency is drawn from what is called with what, so that whoever makes the same call waits as long.
"""

import random
import time
from typing import Any

_MEDIAN_S, _SIGMA = 0.3, 1.0
_LEAST_S, _MOST_S = 0.1, 2.0


class Calculator:
    """Tools on two numbers; the reward is 1 if the last result is what the row asks for."""

    def reset(self, solution: str, **row: Any) -> None:
        """Begin with a row."""
        self._solution = solution
        self._result: int | None = None
        self._num_calls = 0

    def add(self, a: int, b: int) -> int:
        """a + b.

        Args:
            a: The first number.
            b: The second number.
        """
        return self._called(a, b, a + b)

    def sub(self, a: int, b: int) -> int:
        """a - b.

        Args:
            a: The first number.
            b: The second number.
        """
        return self._called(a, b, a - b)

    def mul(self, a: int, b: int) -> int:
        """a * b.

        Args:
            a: The first number.
            b: The second number.
        """
        return self._called(a, b, a * b)

    def get_reward(self) -> float:
        """Whether the last result is the row's."""
        return float(str(self._result) == self._solution)

    def _called(self, a: int, b: int, result: int) -> int:
        self._num_calls += 1
        self._wait(random.Random(f"{self._solution}/{self._num_calls}/{a}/{b}"))
        self._result = result
        return result

    def _wait(self, draw: random.Random) -> None:
        """Answer at once."""


class SlowCalculator(Calculator):
    """The same with calls of 0.1 to 2 seconds, most of them short."""

    def _wait(self, draw: random.Random) -> None:
        time.sleep(min(_MOST_S, max(_LEAST_S, _MEDIAN_S * draw.lognormvariate(0.0, _SIGMA))))
