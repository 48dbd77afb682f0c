"""Work that needs torch, in a process that ends with it: the process that orchestrates stays small."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

from dora_rl.core.errors import DoraError

_P = ParamSpec("_P")
_T = TypeVar("_T")


def aside(job: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
    """What the job returns, or the error it raises."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(job, *arguments, **options).result()
        except BrokenProcessPool as error:
            raise DoraError(
                "the process that plans the run was killed",
                hint="most often for want of memory: `dora doctor` says how much there is",
            ) from error
