"""A sweep: independent runs, as many at a time as there are cores.

Each run is a function of its recipe alone, so where and when it happens changes nothing.
"""

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

from dora_rl.core.recipe import Recipe

T = TypeVar("T")

_WORTHWHILE = 50_000
"""Number of trajectories below which starting processes takes longer than it saves."""


def sweep(
    job: Callable[[Recipe], T], recipes: Sequence[Recipe], done: Callable[[], None] = lambda: None
) -> list[T]:
    """The result of `job` for each recipe, in their order; `done` is called after each one."""
    workers = min(len(recipes), os.cpu_count() or 1)
    if workers < 2 or sum(trajectories(recipe) for recipe in recipes) < _WORTHWHILE:
        return [_and_then(job(recipe), done) for recipe in recipes]
    with ProcessPoolExecutor(workers, get_context("spawn"), _ignore_interrupts) as pool:
        futures = [pool.submit(job, recipe) for recipe in recipes]
        try:
            _wait(futures, done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


def trajectories(recipe: Recipe) -> int:
    """Number of trajectories a run generates, to which its duration is proportional."""
    return recipe.steps * recipe.batch.trajectories


def _wait(futures: Sequence[Future[T]], done: Callable[[], None]) -> None:
    for future in as_completed(futures):
        future.result()
        done()


def _and_then(value: T, done: Callable[[], None]) -> T:
    done()
    return value


def _ignore_interrupts() -> None:
    """Ignore interrupts in a pool's process: the parent handles them and ends the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
