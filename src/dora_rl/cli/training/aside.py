"""Work that needs torch, in a process that ends with it: the process that orchestrates stays small."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import ParamSpec, TypeVar

from dora_rl.core.errors import DoraError

_P = ParamSpec("_P")
_T = TypeVar("_T")


def aside(job: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
    """What the job returns, or the error it raises."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            with _interrupts_ignored():
                promised = pool.submit(job, *arguments, **options)
            return promised.result()
        except KeyboardInterrupt:
            for child in active_children():
                child.kill()
            raise
        except BrokenProcessPool as error:
            raise DoraError(
                "the process that plans the run was killed",
                hint="most often for want of memory: `dora doctor` says how much there is",
            ) from error


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """What is started meanwhile never hears of them: a terminal tells everybody, and one answer is enough."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
