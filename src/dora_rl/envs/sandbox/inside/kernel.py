"""System calls that Python 3.11 has no function for. Each raises OSError with the name of the call."""

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_MOUNT_SETATTR = 442
_AT_RECURSIVE = 0x8000
_AT_FDCWD = -100
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITIES_V3 = 0x20080522

_LIBC = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _checked(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave the caller's namespaces for new ones."""
    _checked(_LIBC.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system, or change how one is mounted."""
    result = _LIBC.mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _checked(result, f"mount {target}")


def make_read_only(target: str) -> None:
    """Let nothing below a mount be written, with everything that is mounted in it."""
    wanted = _MountAttributes(attr_set=MS_RDONLY | MS_NOSUID | MS_NODEV)
    result = _LIBC.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        target.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(wanted),
        ctypes.c_size_t(ctypes.sizeof(wanted)),
    )
    _checked(result, f"mount_setattr {target}")


def unmount(target: str) -> None:
    """Take a mount away, with everything in it."""
    _checked(_LIBC.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """Make a mount the root, and put the old root below it."""
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    _checked(_LIBC.syscall(ctypes.c_long(number), new_root.encode(), put_old.encode()), "pivot_root")


def set_host_name(name: str) -> None:
    """Name the machine as seen from here."""
    _checked(_LIBC.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")


def _prctl(option: int, value: int, other: "ctypes._Pointer[_FilterProgram] | None" = None) -> None:
    result = _LIBC.prctl(option, ctypes.c_ulong(value), other, ctypes.c_ulong(0), ctypes.c_ulong(0))
    _checked(result, f"prctl {option}")


def die_with_parent(signal: int) -> None:
    """Be sent a signal when the parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def adopt_orphans() -> None:
    """Be the parent of every descendant whose parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Let no other process of this user look into this one."""
    _prctl(_PR_SET_DUMPABLE, 0)


def gain_nothing() -> None:
    """Let no program that is started from here have more rights than this process (no_new_privs)."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability for good."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0)
    _checked(_LIBC.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def filter_calls(program: bytes) -> None:
    """Have every further system call of this process and its children go through a filter."""
    filtered = _FilterProgram(length=len(program) // 8, code=program)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.pointer(filtered))
