"""What a program in a box may no longer do; called in its process just before it begins."""

import math
import os
import resource
import signal

from . import kernel
from .root import USER
from .syscalls import filter_program


def set_limits(limits: dict[str, float | None]) -> None:
    """Limit what one process may take; of the number of processes, what all of them may."""
    memory, disk, files = (int(limits[name] or 0) for name in ("memory_bytes", "disk_bytes", "open_files"))
    cpu_s = limits["cpu_s"]
    if cpu_s is not None:
        # At the first it is told, at the second it ends.
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(cpu_s), math.ceil(cpu_s) + 1))
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        # Not its addresses: whole runtimes reserve terabytes of those and use nothing.
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_NOFILE, files),
    ):
        resource.setrlimit(kind, (most, most))


def limit_processes(processes: int) -> None:
    """Limit the processes and threads of this user, which the kernel counts by user namespace."""
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))


def give_up_rights() -> None:
    """Be the box's user for good: no capability, no program that gives one, no call that is refused."""
    if os.getuid() != USER:
        # Who started the box is root: its programs are somebody else.
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
    kernel.drop_capabilities()
    kernel.gain_nothing()
    kernel.filter_calls(filter_program(os.uname().machine))


def reset_signals() -> None:
    """Undo what Python and this program ignore, which a new program would inherit."""
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
