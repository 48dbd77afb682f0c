"""Environments that are made once and reset often: lent to one episode at a time.

An episode that ended in order gives its environment back. One that failed, or was ended by the run, does not:
nobody knows what state it left, so the environment is dropped, and another is made when one is needed.
"""

from collections.abc import Callable
from typing import Any

from dora_rl.envs.episodes.chat import Chat


class LentEnvironments:
    """The environments of one kind in a process; as many as there are episodes at a time."""

    def __init__(self, make: Callable[[], Any], drop: Callable[[Any], None] | None = None) -> None:
        """`make` makes one more; it may be `async`, and may block. `drop` is told of one that is not lent
        again."""
        self._make = make
        self._drop = drop
        self._idle: list[Any] = []

    async def lent(self, chat: Chat) -> Any:
        """An environment for the episode of this chat alone."""
        # Of two threads, only one gets what a list pops.
        environment = self._idle.pop() if self._idle else await chat.call(self._make)

        def over(is_in_order: bool) -> None:
            if is_in_order:
                self._idle.append(environment)
            elif self._drop is not None:
                self._drop(environment)

        chat.at_end(over)
        return environment


def close(environment: Any) -> None:
    """Close an environment that can be closed."""
    if callable(end := getattr(environment, "close", None)):
        end()
