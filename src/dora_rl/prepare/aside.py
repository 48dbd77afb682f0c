"""Work that needs torch, in a process that ends with it: the process that orchestrates stays small.

It runs code of the user's, which may hang, end the process or print. So the process says what it is doing:
whoever waits can name it, and end it where it has a limit. What it prints goes to stderr. It ends itself when
its owner is gone.
"""

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from dora_rl.core.errors import DoraError, UserError
from dora_rl.core.record import Record

_P = ParamSpec("_P")
_T = TypeVar("_T")

_LOOK_EVERY_S = 0.25
_TELL_AFTER_S = 10.0
"""What takes longer is told, once."""
_MEMORY = "most often for want of memory: `dora doctor` says how much there is"


class Doing(Record, frozen=True):
    """A piece of the work that begins."""

    what: str
    """In words that go on from "the process": "importing judge.py"."""
    limit: tuple[str, float] | None = None
    """The recipe's name for how many seconds it may take, and how many."""
    hint: str | None = None
    """What to do if it does not end well, where it is the user's code."""


Tell = Callable[[Doing], None]


class _Returned(Record, frozen=True, gc=True):
    value: Any


class _Raised(Record, frozen=True, gc=True):
    error: BaseException


def aside(job: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
    """What the job returns, or the error it raises."""
    return aside_telling(_Untold(job), *arguments, **options)


class _Untold(Generic[_P, _T]):
    """A job that does not tell what it is doing."""

    def __init__(self, job: Callable[_P, _T]) -> None:
        self._job = job

    def __call__(self, tell: Tell, /, *arguments: _P.args, **options: _P.kwargs) -> _T:
        tell(Doing(what=f"at work on {self._job.__name__}"))
        return self._job(*arguments, **options)


def aside_telling(job: Callable[Concatenate[Tell, _P], _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
    """The same of a job that is given how to tell what it is doing."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, job, arguments, options))
    with _interrupts_ignored():
        process.start()
    theirs.close()
    try:
        with ours:
            word = _last_word(ours, process)
    finally:
        _end(process)
    if isinstance(word, _Raised):
        raise word.error
    result: _T = word.value
    return result


# --- the one who waits ---


def _last_word(pipe: Connection, process: SpawnProcess) -> _Returned | _Raised:
    doing, since, is_told = Doing(what="starting"), time.monotonic(), False
    while True:
        if not wait([pipe, process.sentinel], _LOOK_EVERY_S):
            waited_s = time.monotonic() - since
            if doing.limit is not None and waited_s > doing.limit[1]:
                raise _too_long(doing, *doing.limit)
            if waited_s > _TELL_AFTER_S and not is_told:
                is_told = True
                print(f"{doing.what} ...", file=sys.stderr, flush=True)
            continue
        try:
            # The process may be gone while something it started still holds the other end.
            if not pipe.poll():
                raise EOFError
            word = pipe.recv()
        except (EOFError, OSError):
            raise _gone(process, doing) from None
        if not isinstance(word, Doing):
            assert isinstance(word, _Returned | _Raised), f"nothing else is said: {word}"
            return word
        doing, since, is_told = word, time.monotonic(), False


def _too_long(doing: Doing, name: str, limit_s: float) -> UserError:
    raise_it = f"raise {name}"
    return UserError(
        f"{doing.what} took longer than {name} = {limit_s:g} s",
        hint=f"{doing.hint}; or {raise_it}" if doing.hint else raise_it,
    )


def _gone(process: SpawnProcess, doing: Doing) -> DoraError:
    process.join(1.0)
    code = process.exitcode
    if code is not None and code < 0:
        how, hint = (
            f"was killed by {signal.Signals(-code).name}",
            _MEMORY if code == -signal.SIGKILL else None,
        )
    else:
        how, hint = f"ended with exit code {code}", None
    message = f"the process that plans the run {how} while {doing.what}"
    if hint is None and doing.hint is not None:
        return UserError(message, hint=doing.hint)
    return DoraError(message, hint=hint or "try again; `dora doctor` says what this machine lacks")


def _end(process: SpawnProcess) -> None:
    """With all it started."""
    assert process.pid is not None, "it was started"
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """What is started meanwhile never hears of them: a terminal tells everybody, and one answer is enough."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# --- the process ---


def _work(
    pipe: Connection, job: Callable[..., object], arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    # A group of its own, so that it can be ended with all it started.
    os.setsid()
    # What the user's code prints is no output of the command.
    os.dup2(2, 1)
    threading.Thread(target=_end_with_owner, args=(pipe,), daemon=True).start()
    try:
        pipe.send(_Returned(value=job(pipe.send, *arguments, **options)))
    except Exception as error:  # the owner raises it
        pipe.send(_Raised(error=_portable(error)))


def _end_with_owner(pipe: Connection) -> None:
    """Nothing comes through the pipe but its end."""
    with suppress(EOFError, OSError):
        pipe.recv()
    os.killpg(0, signal.SIGKILL)


def _portable(error: Exception) -> Exception:
    if isinstance(error, DoraError):
        return error
    error.add_note(f"in the process that plans the run:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever an exception of somebody else's does when it is packed
        return RuntimeError(traceback.format_exc())
    return error
