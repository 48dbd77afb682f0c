"""Threads for what blocks: as many as are needed, and known as whose code runs in them."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

_MAX_THREADS = 1 << 20
"""Threads are made as they are needed: every blocking episode waits in one of its own."""

running_in: ContextVar[set[int] | None] = ContextVar("running_in", default=None)
"""The threads in which code of the current episode runs; set for its task, and for all that it starts."""


class EpisodeThreads(ThreadPoolExecutor):
    """The loop's threads: of blocking episodes, of tools, and of whatever an episode gives `to_thread`."""

    def __init__(self) -> None:
        super().__init__(max_workers=_MAX_THREADS, thread_name_prefix="episode")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Call a function in a thread, known as code of the current episode until it returns."""
        threads = running_in.get()
        if threads is None:
            return super().submit(fn, *args, **kwargs)

        def call() -> Any:
            thread = threading.get_ident()
            threads.add(thread)
            try:
                return fn(*args, **kwargs)
            except StopIteration as error:
                raise RuntimeError("a StopIteration was raised") from error  # No future could hold it.
            finally:
                threads.discard(thread)

        return super().submit(call)
