"""The files that can be seen in a box: the system and a Python to read, a temporary directory to write.

Everything else of the machine, the user's home above all, is not hidden but absent.
"""

import os
from collections.abc import Iterable

from . import kernel

USER = 1000
"""The user and group that programs in a box are, as they see it."""
HOME = "/tmp"
"""The only place a program can write to, and where it starts."""

_OLD = "/.old"
_SCRATCH = "/.scratch"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_SETTINGS = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
_DEVICES = ("full", "null", "random", "urandom", "zero")
_WRITTEN = {
    "/etc/passwd": f"root:x:0:0::/:/bin/false\nsandbox:x:{USER}:{USER}::{HOME}:/bin/sh\n",
    "/etc/group": f"root:x:0:\nsandbox:x:{USER}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_INODES = 65536


def build_root(readable: list[tuple[str, str]], disk_bytes: int) -> None:
    """Have this mount namespace show nothing but a box's files.

    `readable` are paths beside the system's, each with the place where it really is.
    """
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    os.mkdir("/tmp" + _OLD)
    kernel.pivot_root("/tmp", "/tmp" + _OLD)
    os.chdir("/")
    _show_scratch(disk_bytes)
    # Only while the whole of the old one can be seen does the kernel give out a new one.
    _mount_processes()
    _show_devices()
    places = {path: path for path in (*_SYSTEM, *_SETTINGS)} | dict(readable)
    for path in _uncovered(places):
        _show(path, _OLD + places[path])
    for path, text in _WRITTEN.items():
        with open(path, "w") as file:
            file.write(text)
    kernel.unmount(_OLD)
    os.rmdir(_OLD)
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", "/", None, flags)


def _show_scratch(disk_bytes: int) -> None:
    """One memory disk for both places that can be written to, so that one limit holds for all."""
    os.mkdir(_SCRATCH)
    options = f"size={disk_bytes},nr_inodes={_INODES},mode=755"
    kernel.mount("tmpfs", _SCRATCH, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    for name, target in (("tmp", HOME), ("shm", "/dev/shm")):
        os.mkdir(f"{_SCRATCH}/{name}")
        os.chown(f"{_SCRATCH}/{name}", USER, USER)
        os.makedirs(target)
        kernel.mount(f"{_SCRATCH}/{name}", target, None, kernel.MS_BIND)
    kernel.unmount(_SCRATCH)
    os.rmdir(_SCRATCH)


def _mount_processes() -> None:
    os.mkdir("/proc")
    flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "/proc", "proc", flags)


def _show_devices() -> None:
    for name in _DEVICES:
        _touch(f"/dev/{name}")
        kernel.mount(f"{_OLD}/dev/{name}", f"/dev/{name}", None, kernel.MS_BIND)
    os.symlink("/proc/self/fd", "/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")


def _uncovered(paths: Iterable[str]) -> list[str]:
    """Paths in order, without those that lie in another."""
    kept: list[str] = []
    for path in sorted(paths, key=lambda path: path.count("/")):
        if not any(path.startswith(above + "/") for above in kept):
            kept.append(path)
    return kept


def _show(path: str, old: str) -> None:
    """Let a file or directory of the old root be read; a link of the system stays a link."""
    if not os.path.lexists(old):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(old):
        os.symlink(os.readlink(old), path)
        return
    os.mkdir(path) if os.path.isdir(old) else _touch(path)
    kernel.mount(old, path, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.make_read_only(path)


def _touch(path: str) -> None:
    with open(path, "x"):
        pass
