"""Environments that draw from the random numbers of the whole process: each episode has them for itself.

Python's `random` has one state for all, and so has numpy's. Where an environment uses it, episodes that share
a process would change each other's draws, and none could be played again. While one of its functions is
called the state is the episode's own; so such calls of a process come one after the other.
"""

import random
import sys
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any

_ONE_AT_A_TIME = Lock()


class OwnRandom:
    """The state of the process's random numbers that belongs to one episode."""

    def __init__(self, seed: int) -> None:
        """Begin with a seed; the state goes on from call to call."""
        self._python = random.Random(seed).getstate()
        self._numpy: Any = None
        self._seed = seed

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, called with the episode's random numbers; it must not be `async`."""

        @wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            with _ONE_AT_A_TIME:
                before = self._swapped_in()
                try:
                    return function(*arguments, **named)
                finally:
                    self._swapped_out(*before)

        return called

    def _swapped_in(self) -> tuple[Any, Any]:
        python = random.getstate()
        random.setstate(self._python)
        # Only one that is loaded can be drawn from.
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return python, None
        state = numpy.random.get_state()
        if self._numpy is None:
            numpy.random.seed(self._seed % 2**32)
        else:
            numpy.random.set_state(self._numpy)
        return python, state

    def _swapped_out(self, python: Any, state: Any) -> None:
        self._python = random.getstate()
        random.setstate(python)
        if state is not None:
            numpy = sys.modules["numpy"]
            self._numpy = numpy.random.get_state()
            numpy.random.set_state(state)
