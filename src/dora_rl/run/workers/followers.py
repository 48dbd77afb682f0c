"""Ranks 1 to N-1 of the trainer, as rank 0 sees them: told every command, and watched. Knows no torch.

    rank 0 ──── every command, as it came ───> ranks 1 .. N-1
           <─── signs of life, last words ────

All ranks act in step or not at all: one that is gone, broken or silent ends rank 0 with the reason, and the
end of rank 0 ends the rest. They are of its process group, so whoever ends that ends them all.
"""

import sys
import threading
import time
from types import TracebackType
from typing import Self

import msgspec

from dora_rl.core.errors import DoraError
from dora_rl.launch.channel import Channel
from dora_rl.launch.protocol import Handle, Launch, Place, WorkerSpec
from dora_rl.launch.waiting import wait_for
from dora_rl.run import messages as say

SETTLING_S = 1.0
"""How long a rank whose work breaks off waits for rank 0 to name the one that died before it."""
_LOOK_EVERY_S = 0.2


class Followers:
    """The trainer's ranks 1 to N-1, from their start to their end; none where the trainer is one process."""

    def __init__(self, channel: Channel, begin: say.Begin, launch: Launch) -> None:
        devices = begin.setup.devices
        self._channel = channel
        self._silence_s = begin.setup.recipe.control.silence_s
        self._stop_s = begin.setup.recipe.patience.stop_s
        self._size = devices.trainer_ranks
        self._is_ending = threading.Event()
        self._using = threading.Lock()
        """Held by whichever thread uses the handles: the main one tells, the watcher listens."""
        self._followers: list[_Follower] = []
        for rank in range(1, self._size):
            place = Place.on(devices.rank_device(rank), cpus=devices.trainer_threads)
            # What it prints goes where rank 0's output goes.
            worker = WorkerSpec(name=f"rank {rank}", module="dora_rl.run.workers.rank", place=place)
            handle = launch.start(worker, say.RankWord)
            handle.send(msgspec.structs.replace(begin, number=rank))
            self._followers.append(_Follower(rank, handle))
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._watcher.start()

    def tell(self, command: say.Message) -> None:
        """Have every other rank do what this one is about to do; returns when all have the command."""
        handles = [each.handle for each in self._followers]
        with self._using:
            for handle in handles:
                handle.send(command)
        while not self._is_sent():
            wait_for([], handles, _LOOK_EVERY_S)

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
            self.tell(say.Stop())
        with self._using:
            self._end_all(self._stop_s if error is None else 0.0)

    def _is_sent(self) -> bool:
        with self._using:
            return all(each.handle.flush() for each in self._followers)

    def _end_all(self, within_s: float) -> None:
        until = time.monotonic() + within_s
        for each in self._followers:
            each.handle.end(max(0.0, until - time.monotonic()))

    # --- watching -------------------------------------------------------------------------------

    def _watch(self) -> None:
        handles = [each.handle for each in self._followers]
        while handles and not self._is_ending.is_set():
            wait_for([], handles, _LOOK_EVERY_S)
            with self._using:
                for each in self._followers:
                    if self._is_ending.is_set():
                        return
                    if (trouble := each.trouble(self._silence_s)) is not None:
                        self._end(each, trouble)

    def _end(self, lost: "_Follower", trouble: say.Broken) -> None:
        """End the process from the watching thread: the main one may be waiting for the lost rank."""
        message = f"rank {lost.rank} of {self._size} {trouble.message}"
        print(message, file=sys.stderr)
        self._channel.send(msgspec.structs.replace(trouble, message=message))
        self._end_all(0.0)
        self._channel.leave(1)


class _Follower:
    """One of the trainer's other ranks: its handle, and when it was last heard."""

    def __init__(self, rank: int, handle: Handle) -> None:
        self.rank = rank
        self.handle = handle
        self._heard_at = time.monotonic()

    def trouble(self, silence_s: float) -> say.Broken | None:
        """What is wrong with this rank (broken, gone, silent for too long), or None; reads its messages."""
        words = self.handle.receive()
        broken = next((word for word in words if isinstance(word, say.Broken)), None)
        if broken is not None:
            return msgspec.structs.replace(broken, message=f"broke: {broken.message}")
        if not self.handle.is_alive:
            how = self.handle.end(SETTLING_S)
            return say.Broken(message=f"was {how}" if how.startswith("killed") else how)
        now = time.monotonic()
        if words:
            self._heard_at = now
        is_silent = now - self._heard_at > silence_s
        return say.Broken(message=f"was silent for {silence_s:g} s") if is_silent else None
