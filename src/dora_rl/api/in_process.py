"""Reward functions that cannot be sent to another process: called in threads of the caller's.

Everything else of the run starts as it would. What this costs is said when it is used: a call that hangs
cannot be ended, one that crashes takes the program along, and Python runs one thread at a time.
"""

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dora_rl.core.named import OBJECT
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.core.record import Record
from dora_rl.envs.scoring.functions import load_function, reward_function
from dora_rl.envs.scoring.reward_messages import SetUp, WorkerInput
from dora_rl.launch.channel import Channel
from dora_rl.launch.connection import Connection
from dora_rl.launch.protocol import Handle, Launch, WorkerSpec
from dora_rl.run.workers import reward_worker


class CallersRewards:
    """Starts reward workers as threads of this process, and every other worker as `launch` does."""

    def __init__(self, launch: Launch, given: Callable[[str], Any]) -> None:
        """`given` returns the object of a label; `launch` starts all other workers."""
        self._launch = launch
        self._given = given

    def start(self, worker: WorkerSpec, replies: Any) -> Handle:
        """Start a worker: one of rewards as a thread here, any other by `launch`. Implements Launch."""
        if worker.module != reward_worker.__name__:
            return self._launch.start(worker, replies)
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._serve, args=(theirs,), name=worker.name, daemon=True).start()
        return ThreadHandle(ours, replies)

    def _serve(self, pipe: socket.socket) -> None:
        # A call that ends after the run did has nobody to tell.
        with pipe, suppress(BrokenPipeError, ConnectionResetError):
            channel = Channel(pipe, WorkerInput, is_thread=True)
            if isinstance(set_up := channel.receive(), SetUp):
                reward_worker.serve(channel, set_up, self._load)

    def _load(self, config: RewardConfig) -> Any:
        if config.function.startswith(OBJECT):
            return reward_function(config, self._given(config.function.removeprefix(OBJECT)))
        return load_function(config)


class ThreadHandle:
    """A worker that is a thread of this process. Implements Handle; `end` hangs up and waits for nobody."""

    def __init__(self, pipe: socket.socket, replies: Any) -> None:
        self._selector = selectors.DefaultSelector()
        self._connection = Connection(pipe, replies, self._selector)
        self._has_ended = False

    @property
    def is_alive(self) -> bool:
        return not (self._has_ended or self._connection.has_hung_up)

    @property
    def is_stopped(self) -> bool:
        return False

    @property
    def node(self) -> str | None:
        return None

    @property
    def is_placed(self) -> bool:
        return True

    @property
    def is_mid_message(self) -> bool:
        return self._connection.is_mid_message

    def fileno(self) -> int:
        return int(self._selector.fileno())

    def send(self, message: Record) -> None:
        if self.is_alive:
            self._connection.send(message)

    def flush(self) -> bool:
        return not self.is_alive or self._connection.flush()

    def receive(self) -> list[Any]:
        return [] if self._has_ended else self._connection.receive()

    def end(self, within_s: float) -> str:
        if not self._has_ended:
            self._has_ended = True
            self._connection.close()
            self._selector.close()
        return self._connection.fault or "closed its socket"
