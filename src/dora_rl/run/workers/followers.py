"""Ranks 1 to N-1 of the trainer, as rank 0 sees them: told every command, and watched. Knows no torch.

    rank 0 ──── every command, as it came ───> ranks 1 .. N-1
           <─── signs of life, last words ────

All ranks act in step or not at all: one that is gone, broken or silent ends rank 0 with the reason, and the
end of rank 0 ends the rest. They are of its process group, so whoever ends that ends them all.
"""

import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Self

import msgspec

from dora_rl.core.errors import DoraError
from dora_rl.envs.scoring.wire import Frames, framed
from dora_rl.run import messages as say
from dora_rl.run.workers.channel import Channel

SETTLING_S = 1.0
"""How long a rank whose work breaks off waits for rank 0 to name the one that died before it."""
_RECEIVE_BYTES = 1 << 16
_LOOK_EVERY_S = 0.2


class Followers:
    """The other ranks, from their start to their end; none where the trainer is one process."""

    def __init__(self, channel: Channel, begin: say.Begin) -> None:
        self._channel = channel
        self._silence_s = begin.setup.control.silence_s
        self._stop_s = begin.setup.patience.stop_s
        self._size = begin.setup.devices.trainer_ranks
        self._is_ending = threading.Event()
        self._followers = [_Follower(rank) for rank in range(1, self._size)]
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.tell(begin)
        self._watcher.start()

    def tell(self, command: say.Message) -> None:
        """Have every rank do what this one is about to do."""
        sent = framed(command)
        for each in self._followers:
            each.pipe.sendall(sent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._followers and error is not None and not isinstance(error, DoraError):
            # What a survivor sees of a death is a collective that breaks off; the watcher says whose it was.
            time.sleep(SETTLING_S)
        self._is_ending.set()
        if error is None:
            self._dismiss()
        self._kill()

    def _dismiss(self) -> None:
        self.tell(say.Stop())
        until = time.monotonic() + self._stop_s
        for each in self._followers:
            each.has_ended(max(0.0, until - time.monotonic()))

    def _kill(self) -> None:
        for each in self._followers:
            each.process.kill()
        for each in self._followers:
            each.has_ended(SETTLING_S)

    # --- watching -------------------------------------------------------------------------------

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for each in self._followers:
                selector.register(each.pipe, selectors.EVENT_READ, each)
            while self._followers and not self._is_ending.is_set():
                speaking = [key.data for key, _ in selector.select(_LOOK_EVERY_S)]
                for each in self._followers:
                    trouble = each.heard() if each in speaking else each.silence(self._silence_s)
                    if trouble is not None and not self._is_ending.is_set():
                        self._end(each.rank, trouble)

    def _end(self, rank: int, trouble: say.Broken) -> None:
        """In place of the main thread, which may be waiting for the lost rank."""
        message = f"rank {rank} of {self._size} {trouble.message}"
        print(message, file=sys.stderr)
        self._channel.send(msgspec.structs.replace(trouble, message=message))
        self._kill()
        self._channel.leave(1)


class _Follower:
    """One of them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.pipe, theirs = socket.socketpair()
        with theirs:
            # Output and process group are rank 0's.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dora_rl.run.workers.rank", str(theirs.fileno()), str(rank)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._decode = msgspec.msgpack.Decoder(say.RankWord).decode
        self._frames = Frames()
        self._heard_at = time.monotonic()

    def heard(self) -> say.Broken | None:
        """Take in what it said; what is wrong, if it is gone or said so."""
        self._heard_at = time.monotonic()
        try:
            received = self.pipe.recv(_RECEIVE_BYTES)
        except ConnectionResetError:
            received = b""
        words = [self._decode(payload) for payload in self._frames.feed(received)]
        broken = next((word for word in words if isinstance(word, say.Broken)), None)
        if broken is not None:
            return msgspec.structs.replace(broken, message=f"broke: {broken.message}")
        return None if received else say.Broken(message=self._how_it_ended())

    def silence(self, limit_s: float) -> say.Broken | None:
        """What is wrong, if it has given no sign of life for so long."""
        is_silent = time.monotonic() - self._heard_at > limit_s
        return say.Broken(message=f"was silent for {limit_s:g} s") if is_silent else None

    def has_ended(self, within_s: float) -> bool:
        """Whether the process is over."""
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _how_it_ended(self) -> str:
        if not self.has_ended(SETTLING_S):
            return "closed its socket"
        code = self.process.returncode
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
