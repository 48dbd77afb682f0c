"""Environments that are made once and reset often: lent to one episode at a time.

An episode that ended in order gives its environment back. One that failed, or was ended by the run, does not:
nobody knows what state it left, so the environment is dropped, and another is made when one is needed.
"""

import inspect
from collections.abc import Callable
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.warm_pool import WarmPool


class LentEnvironments:
    """The environments of one kind in a process; as many as there are episodes at a time."""

    def __init__(
        self,
        make: Callable[[], Any],
        drop: Callable[[Any], None] | None = None,
        *,
        warm: int = 0,
        check: Callable[[Any], bool] | None = None,
    ) -> None:
        """`make` makes one more; it may be `async`, and may block. `drop` is told of one that is not lent
        again. `warm` are made ahead; `check` says whether one that waited can still be used."""
        if warm and inspect.iscoroutinefunction(make):
            raise UserError(
                "environments whose making is awaited cannot be made ahead", hint="leave out the option warm"
            )
        self._make = make
        self._drop = drop or (lambda environment: None)
        self._warm = warm
        self._check = check or (lambda environment: True)
        self._pool: WarmPool[Any] | None = None

    async def lent(self, chat: Chat) -> Any:
        """An environment for the episode of this chat alone."""
        if self._pool is None:
            # Not before: an episode may be sent to another process.
            self._pool = WarmPool(
                self._make, size=self._warm, check=self._check, close=self._drop, is_reused=True
            )
        pool = self._pool
        environment = await chat.call(pool.take)
        chat.at_end(
            lambda is_in_order: pool.give_back(environment) if is_in_order else self._drop(environment)
        )
        return environment


def close(environment: Any) -> None:
    """Close an environment that can be closed."""
    if callable(end := getattr(environment, "close", None)):
        end()
