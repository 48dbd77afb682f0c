"""What the programs in a box may take, and how one of them ended."""

import signal
from typing import Literal

from dora_rl.core.record import Record

WhyEnded = Literal["exited", "wall", "cpu", "memory", "output", "closed"]
"""`exited`: by itself, or by a signal; a limit's name: that limit; `closed`: the box was."""

_MIB = 1 << 20


class BoxLimits(Record, frozen=True):
    """What the programs in a box may take."""

    wall_s: float | None = 10.0
    """Seconds that a program may run; None for no limit."""
    cpu_s: float | None = 10.0
    """Seconds of a processor that each process may use; None for no limit."""
    memory_bytes: int = 1024 * _MIB
    """Memory of all processes together; a process that asks for more than that alone gets none."""
    disk_bytes: int = 64 * _MIB
    """Bytes of all files, which lie in memory."""
    output_bytes: int = _MIB
    """Bytes of a program's output, and as many of its errors."""
    processes: int = 32
    """Processes and threads at a time."""
    open_files: int = 256
    """Files that one process may have open."""


class FinishedProgram(Record, frozen=True):
    """How a program ended, and what it said."""

    returncode: int
    """Its exit code; of one that a signal ended, the signal's number with a minus."""
    stdout: str
    stderr: str
    why_ended: WhyEnded
    wall_s: float

    @property
    def is_good(self) -> bool:
        """Whether the program ended by itself and reported no failure."""
        return self.why_ended == "exited" and self.returncode == 0

    @property
    def text(self) -> str:
        """All of it for whoever called, such as a model: output, errors, and how it ended if not well."""
        said = [each.rstrip("\n") for each in (self.stdout, self.stderr) if each.strip()]
        if self.why_ended != "exited":
            said.append(f"[ended: {_LIMIT_WORDS[self.why_ended]}]")
        elif self.returncode < 0:
            said.append(f"[ended: {signal.Signals(-self.returncode).name}]")
        elif self.returncode:
            said.append(f"[exit code {self.returncode}]")
        return "\n".join(said)


_LIMIT_WORDS: dict[WhyEnded, str] = {
    "wall": "it ran for too long",
    "cpu": "it computed for too long",
    "memory": "it took too much memory",
    "output": "it wrote too much",
    "closed": "the sandbox was closed",
}
