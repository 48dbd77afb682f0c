"""A worker that says what its node is like: `python -m dora_rl.launch.probe ADDRESS`."""

import fcntl
import platform
import sys
import time
from pathlib import Path

from dora_rl.core.version import VERSION
from dora_rl.launch.breaking import telling_why
from dora_rl.launch.channel import Channel
from dora_rl.launch.messages import Broken, Message, Stop


class Echo(Message, frozen=True):
    """Told, and said back: these bytes."""

    payload: bytes


class Look(Message, frozen=True):
    """Told: look for a file, and for the lock that whoever asks holds on it."""

    path: str


class Looked(Message, frozen=True):
    """Said: what was seen on the node."""

    content: bytes | None
    """What the file held; None where it is not there."""
    is_locked: bool
    """Whether a lock of another machine's kept this one out."""
    clock_s: float
    """Seconds since 1970, by the node's clock."""
    software: str
    """Versions of what the node runs workers with."""


ProbeCommand = Echo | Look | Stop
ProbeWord = Echo | Looked | Broken


def looked(path: Path) -> Looked:
    """What is seen of a file from here, right now."""
    content, is_locked = None, False
    try:
        with path.open("r+b") as file:
            content = file.read()
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        is_locked = content is not None
    except OSError:
        pass
    software = f"dora-rl {VERSION}, Python {platform.python_version()}"
    return Looked(content=content, is_locked=is_locked, clock_s=time.time(), software=software)


def main(address: str) -> None:
    """Answer until told to stop."""
    channel = Channel.connect(address, ProbeCommand)
    with telling_why(channel):
        while not isinstance(command := channel.receive(), Stop):
            channel.send(command if isinstance(command, Echo) else looked(Path(command.path)))
    channel.leave()


if __name__ == "__main__":
    main(sys.argv[1])
