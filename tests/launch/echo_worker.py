"""A worker for the contract of handles: does what it is told, also what no worker should."""

import os
import socket
import subprocess
import sys
import time

from dora_rl.core.errors import DoraError
from dora_rl.launch.breaking import telling_why
from dora_rl.launch.channel import Channel
from dora_rl.launch.framing import framed
from dora_rl.launch.messages import Alive, Broken, Message


class Echo(Message, frozen=True):
    """Say the same."""

    payload: bytes


class EchoHalf(Message, frozen=True):
    """Say the same, the second half of it at the next command."""

    payload: bytes


class Ask(Message, frozen=True):
    """Say an environment variable."""

    variable: str


class Value(Message, frozen=True):
    value: str | None


class Spawn(Message, frozen=True):
    """Start a process that outlives this one, and say its number."""

    holds_socket: bool


class Spawned(Message, frozen=True):
    pid: int


class Babble(Message, frozen=True):
    """Send these bytes as they are, which are no message, and go on."""

    sent: bytes


class Exit(Message, frozen=True):
    code: int


class Fail(Message, frozen=True):
    message: str


class HangUp(Message, frozen=True):
    """Say nothing any more and go on."""


class Work(Message, frozen=True):
    """Be busy for so long, giving signs of life."""

    seconds: float


Command = Echo | EchoHalf | Ask | Spawn | Babble | Exit | Fail | HangUp | Work
Reply = Echo | Value | Spawned | Alive | Broken


def obey(channel: Channel, command: Command) -> None:
    match command:
        case Echo():
            channel.send(command)
        case EchoHalf(payload=payload):
            frame = framed(Echo(payload=payload))
            channel._pipe.sendall(frame[: len(frame) // 2])
            channel.receive()
            channel._pipe.sendall(frame[len(frame) // 2 :])
        case Ask(variable=variable):
            channel.send(Value(value=os.environ.get(variable)))
        case Spawn(holds_socket=holds_socket):
            held = [channel._pipe.fileno()] if holds_socket else []
            code = "import time; time.sleep(600)"
            channel.send(Spawned(pid=subprocess.Popen([sys.executable, "-c", code], pass_fds=held).pid))
        case Babble(sent=sent):
            channel._pipe.sendall(sent)
        case Exit(code=code):
            channel.leave(code)
        case Fail(message=message):
            raise DoraError(message, hint="do not")
        case HangUp():
            channel._pipe.shutdown(socket.SHUT_WR)
        case Work(seconds=seconds):
            with channel.kept_alive(600.0):
                time.sleep(seconds)
            channel.send(Value(value="done"))


def main(address: str) -> None:
    channel = Channel.connect(address, Command)
    print("up", flush=True)
    with telling_why(channel):
        while True:
            obey(channel, channel.receive())


if __name__ == "__main__":
    main(sys.argv[1])
