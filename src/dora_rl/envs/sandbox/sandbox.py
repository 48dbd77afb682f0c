"""Boxes for a process: a program, or code that a model wrote, each in a box of its own."""

import asyncio
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from dora_rl.core.errors import UserError
from dora_rl.envs.sandbox.box import Box, BoxFailed, Content
from dora_rl.envs.sandbox.inside.syscalls import MACHINES
from dora_rl.envs.sandbox.limits import BoxLimits, FinishedProgram
from dora_rl.envs.sandbox.relay import relayed
from dora_rl.envs.warm_pool import WarmPool

SandboxMode = Literal["auto", "none"]

_OLDEST_KERNEL = (5, 14)
"""Since then the kernel counts processes by user namespace, and not those of the user elsewhere."""


class Sandbox:
    """Runs what nobody has read. Made once per process; every call has a box of its own.

    What it protects, and what not, is in docs/sandbox.md.
    """

    def __init__(
        self,
        limits: BoxLimits | None = None,
        *,
        mode: SandboxMode = "auto",
        readable: Sequence[str] = (),
        warm: int = 1,
        is_checked: bool = False,
    ) -> None:
        """Raises UserError where this system lets no box be made, unless that `is_checked` already.

        With the mode `none` there are only the limits: programs are the user who runs this, with all rights.
        `readable` are paths that programs may read beside the system and this Python. `warm` boxes are kept
        ready, from the first call on.
        """
        self._limits = limits or BoxLimits()
        self._mode = mode
        self._readable = tuple(readable)
        self._num_warm = warm
        for path in self._readable:
            if not os.path.exists(path):
                raise UserError(f"programs in the sandbox are to read {path}, which does not exist")
        if mode == "auto" and not is_checked:
            check_allowed(lambda: self._made(is_warm=False))
        self._pool = WarmPool(
            lambda: self._made(is_warm=warm > 0),
            size=warm,
            check=lambda box: box.is_alive,
            close=_close_aside,
        )

    def limited(self, **limits: float | None) -> "Sandbox":
        """The same with other limits: `sandbox.limited(wall_s=2)`."""
        return Sandbox(
            msgspec.structs.replace(self._limits, **limits),
            mode=self._mode,
            readable=self._readable,
            warm=self._num_warm,
            is_checked=True,
        )

    def open(self) -> Box:
        """A box to keep for several programs, which see each other's files; close it, or use it in `with`."""
        return self._pool.take()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Content = b"",
        files: Mapping[str, Content] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> FinishedProgram:
        """Run a program in a new box, as `Box.run` does."""
        with self._pool.lent() as box:
            return box.run(argv, stdin=stdin, files=files, environment=environment)

    def execute(
        self,
        code: str,
        *,
        stdin: Content = b"",
        files: Mapping[str, Content] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> FinishedProgram:
        """Run Python code in a new box, as `Box.execute` does."""
        with self._pool.lent() as box:
            return box.execute(code, stdin=stdin, files=files, environment=environment)

    def run_python(self, code: str) -> str:
        """Run Python code and get what it prints. Nothing is kept from one call to the next.

        Args:
            code: The code, a whole program.
        """
        return self.execute(code).text

    async def run_with_endpoint(
        self,
        argv: Sequence[str],
        *,
        port: int,
        stdin: Content = b"",
        files: Mapping[str, Content] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> FinishedProgram:
        """Run a program whose network is one address: `127.0.0.1:port`, the same inside and outside.

        A program that waits for turns should have no limit of its own on time:
        `sandbox.limited(wall_s=None, cpu_s=None)`. It is ended if this is cancelled.
        """
        # Where there are no namespaces the program reaches the port itself.
        ports = (port,) if self._mode == "auto" else ()
        box = await _opened(lambda: self._made(is_warm=False, ports=ports))
        try:
            program = asyncio.to_thread(box.run, argv, stdin=stdin, files=files, environment=environment)
            if not box.listeners:
                return await program
            async with relayed(box.listeners[port], "127.0.0.1", port):
                return await program
        finally:
            # It ends the program as well, which the thread waits for.
            await asyncio.shield(asyncio.to_thread(box.close))

    def close(self) -> None:
        """Close the boxes that are ready."""
        self._pool.close()

    def _made(self, *, is_warm: bool, ports: Sequence[int] = ()) -> Box:
        return Box(
            self._limits,
            is_isolated=self._mode == "auto",
            is_warm=is_warm,
            readable=self._readable,
            ports=ports,
        )


def _close_aside(box: Box) -> None:
    """Close a box in which nothing runs any more, while its taker goes on."""
    threading.Thread(target=box.close, name="closing a box", daemon=True).start()


async def _opened(make: Callable[[], Box]) -> Box:
    """A box that is made in a thread; if nobody waits for it any more it is closed."""
    making = asyncio.get_running_loop().run_in_executor(None, make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(_close_made)
        raise


def _close_made(making: "asyncio.Future[Box]") -> None:
    with suppress(BoxFailed, asyncio.CancelledError):
        making.result().close()


def check_allowed(make: Callable[[], Box]) -> None:
    """Raise UserError where this system lets no box be made; `make` tries."""
    reason = _unsuited(sys.platform, os.uname().machine, os.uname().release)
    if reason is None:
        try:
            make().close()
        except BoxFailed as error:
            reason = f"this system does not let a box be made ({error.message})"
    if reason is not None:
        raise UserError(
            f"the sandbox for code that a model writes cannot be used: {reason}",
            hint="allow user namespaces (docs/sandbox.md says how), or run the code unprotected: "
            "episode.sandbox=none",
        )


def _unsuited(platform: str, machine: str, release: str) -> str | None:
    """Why a machine has no boxes at all, whatever it allows; None if it may have."""
    if platform != "linux":
        return "it needs Linux"
    if machine not in MACHINES:
        return f"it knows the processors {' and '.join(MACHINES)}, not {machine}"
    version = tuple(map(int, re.findall(r"\d+", release)[:2]))
    if version < _OLDEST_KERNEL:
        return f"it needs Linux 5.14, and this is {release}"
    return None
