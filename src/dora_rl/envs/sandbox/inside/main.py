"""A box from the inside: `python -I -S`, with a socket to its owner.

    outer    leaves the owner's namespaces, then only waits; when it is killed, the first process is too
    writer   says, from outside, who the users of the new namespace are; ends at once
    first    builds the root, opens the loopback, then runs jobs; when its owner is gone it ends, and with it
             everything in the box

Without namespaces the outer process runs the jobs itself.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import signal
import socket
import struct

from . import interpreter, kernel
from .jobs import Jobs
from .messages import LONGEST
from .root import USER, build_root

TYPE_CHECKING = False
if TYPE_CHECKING:  # Whatever is imported delays the start of a box.
    from collections.abc import Callable
    from typing import Any, NoReturn

_NOBODY = 65534
"""Who programs are outside, where root starts a box."""
_SIOCSIFFLAGS = 0x8914
_UP_AND_RUNNING = 0x1 | 0x40
_BACKLOG = 128


def main(descriptor: int) -> NoReturn:
    """Be a box until its owner is gone."""
    os.set_inheritable(descriptor, False)
    control = socket.socket(fileno=descriptor)
    spec: dict[str, Any] = marshal.loads(control.recv(LONGEST))
    # A terminal's interrupt is for the owner, who ends the box.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(interpreter.__file__, encoding="utf-8") as file:
        waits_for_code = file.read()
    listeners: list[socket.socket] = []
    try:
        if spec["is_isolated"]:
            _enter(control)
            build_root(spec["readable"], int(spec["limits"]["disk_bytes"]))
            listeners = _open_loopback(spec["ports"])
        else:
            kernel.adopt_orphans()
    except OSError as error:
        control.send(marshal.dumps({"failed": error.strerror or str(error)}))
        os._exit(1)
    socket.send_fds(control, [marshal.dumps({"ready": True})], [each.fileno() for each in listeners])
    for each in listeners:
        each.close()
    Jobs(control, spec, waits_for_code).serve()
    os._exit(0)


def _enter(control: socket.socket) -> None:
    """Go on as the first process of new namespaces; the process that called stays outside and waits."""
    write_users = _user_writer(control)
    flags = kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    kernel.unshare(kernel.CLONE_NEWUSER | flags)
    write_users()
    first = os.fork()
    if first:
        control.close()
        os.waitpid(first, 0)
        os._exit(0)
    kernel.die_with_parent(signal.SIGKILL)
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.set_host_name("sandbox")
    # Programs of the box are the same user, and must not look into this process.
    kernel.hide_memory()


def _user_writer(control: socket.socket) -> Callable[[], None]:
    """A process outside that will write who the users of this one's namespace are, when called."""
    outer, is_root = os.getpid(), os.geteuid() == 0
    waiting, go = os.pipe()
    writer = os.fork()
    if not writer:
        os.close(go)
        os.read(waiting, 1)
        try:
            _write_users(outer, is_root=is_root)
        except OSError as error:
            control.send(marshal.dumps({"failed": f"{error.filename}: {error.strerror}"}))
            os._exit(1)
        os._exit(0)
    os.close(waiting)

    def write() -> None:
        os.close(go)
        if os.waitpid(writer, 0)[1]:
            os._exit(1)  # It has said why.

    return write


def _write_users(process: int, *, is_root: bool) -> None:
    for kind, own in (("gid", os.getegid()), ("uid", os.geteuid())):
        # Root builds the box as itself, which is nobody's user in it.
        text = f"0 0 1\n{USER} {_NOBODY} 1\n" if is_root else f"{USER} {own} 1\n"
        if kind == "gid" and not is_root:
            _write(f"/proc/{process}/setgroups", "deny")
        _write(f"/proc/{process}/{kind}_map", text)


def _write(path: str, text: str) -> None:
    # In one piece, or the kernel does not take it.
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(descriptor)


def _open_loopback(ports: list[int]) -> list[socket.socket]:
    """Bring up the loopback, the only network there is, and listen on it for the owner."""
    listeners = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anywhere:
        fcntl.ioctl(anywhere, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
        listeners.append(listener)
    return listeners
