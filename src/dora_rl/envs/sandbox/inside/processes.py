"""All processes of a box: what they take, and their end."""

import os
import signal
from contextlib import suppress

_COUNTED = ("RssAnon:", "RssShmem:", "VmSwap:")
_FIRST = 1
"""The number of the first process of a namespace."""


class Namespaced:
    """Processes in a namespace of which this is the first: every other."""

    def used_bytes(self) -> int:
        """Memory that they hold and that no file holds."""
        return sum(_memory_bytes(int(name)) for name in os.listdir("/proc") if name.isdigit() and name != "1")

    def kill(self) -> None:
        """End them all at once; the kernel lets none start meanwhile."""
        # Elsewhere it would be every process of the user.
        assert os.getpid() == _FIRST, f"process {os.getpid()} is not the first of a namespace"
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)


class Descendants:
    """Processes that this one started, and they in turn, where there are no namespaces."""

    def used_bytes(self) -> int:
        """Memory that they hold and that no file holds."""
        return sum(_memory_bytes(each) for each in self._members())

    def kill(self) -> None:
        """End them, stopped first so that they cannot start others."""
        known: set[int] = set()
        while new := self._members() - known:
            for each in new:
                _signal(each, signal.SIGSTOP)
            known |= new
        for each in known:
            _signal(each, signal.SIGKILL)

    def _members(self) -> set[int]:
        parents = {int(name): _parent(name) for name in os.listdir("/proc") if name.isdigit()}
        found, above = set[int](), {os.getpid()}
        while above := {each for each, parent in parents.items() if parent in above}:
            found |= above
        return found


def _signal(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def _memory_bytes(process: int) -> int:
    """Anonymous and shared memory of a process, also what is swapped out; 0 if it is gone."""
    with suppress(OSError), open(f"/proc/{process}/status") as file:
        kilobytes = [line.split()[1] for line in file if line.startswith(_COUNTED)]
        return 1024 * sum(map(int, kilobytes))
    return 0


def _parent(process: str) -> int | None:
    # The name, in brackets, may contain anything.
    with suppress(OSError), open(f"/proc/{process}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
    return None
