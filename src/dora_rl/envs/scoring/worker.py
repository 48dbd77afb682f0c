"""The process that runs reward functions: `python -m dora_rl.envs.scoring.worker FD`.

    reader thread   messages in; when the parent is gone, ends the process and all it started
    main thread     synchronous functions, one request after the other; signals and asyncio.run work
    loop thread     asynchronous functions, many requests at a time

Never imports torch unless a user's module does.
"""

import asyncio
import io
import os
import queue
import signal
import socket
import sys
import threading

import msgspec

from dora_rl.core.errors import UserError
from dora_rl.core.record import Record
from dora_rl.envs.scoring.functions import RewardFunction, load_function
from dora_rl.envs.scoring.messages import (
    Began,
    Needs,
    Ready,
    ScoreRequest,
    SetUp,
    Unusable,
    WorkerInput,
)
from dora_rl.envs.scoring.scorer import Scorer, Scores
from dora_rl.envs.scoring.wire import Frames, framed

_RECEIVE_BYTES = 1 << 16


class Channel:
    """The worker's end of the pipe."""

    def __init__(self, pipe: socket.socket) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._received: queue.SimpleQueue[WorkerInput] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="reader", daemon=True).start()

    def send(self, message: Record) -> None:
        with self._sending:
            self._pipe.sendall(framed(message))

    def receive(self) -> WorkerInput:
        return self._received.get()

    def _read(self) -> None:
        decoder, frames = msgspec.msgpack.Decoder(WorkerInput), Frames()
        try:
            while received := self._pipe.recv(_RECEIVE_BYTES):
                for payload in frames.feed(received):
                    self._received.put(decoder.decode(payload))
        finally:
            # Also from within a function that hangs, and with every process it started.
            os.killpg(0, signal.SIGKILL)


class RewardWorker:
    """Answers score requests until the parent hangs up."""

    def __init__(self, channel: Channel, functions: list[RewardFunction], time_limit_s: float) -> None:
        self._channel = channel
        self._scorer = Scorer(functions, time_limit_s=time_limit_s, began=self._began)
        self._loop = asyncio.new_event_loop()

    def run(self) -> None:
        threading.Thread(target=self._loop.run_forever, name="loop", daemon=True).start()
        while True:
            request = self._channel.receive()
            assert isinstance(request, ScoreRequest), f"after the first message only requests come: {request}"
            self._answer(request)

    def _answer(self, request: ScoreRequest) -> None:
        scores = self._scorer.call_plain(request)
        if self._scorer.is_async(request.per):
            asyncio.run_coroutine_threadsafe(self._finish(scores), self._loop)
        else:
            self._channel.send(scores.result())

    async def _finish(self, scores: Scores) -> None:
        await self._scorer.call_async(scores)
        self._channel.send(scores.result())

    def _began(self, request: int, function: RewardFunction) -> None:
        self._channel.send(Began(request=request, function=function.label, is_async=function.is_async))


def main(fd: int) -> None:
    """Import the functions, say so, and serve."""
    # It ends by being killed: what was printed into a file has to be there by then.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    os.set_inheritable(fd, False)
    channel = Channel(socket.socket(fileno=fd))
    set_up = channel.receive()
    assert isinstance(set_up, SetUp), f"the first message says what to import: {set_up}"
    sys.path += [place for place in set_up.search_path if place not in sys.path]
    try:
        functions = [load_function(reward) for reward in set_up.rewards]
    except UserError as error:
        channel.send(Unusable(message=error.message, hint=error.hint))
        return
    needs = tuple(Needs(function=function.label, columns=function.required) for function in functions)
    channel.send(Ready(needs=needs, is_concurrent=any(function.is_async for function in functions)))
    RewardWorker(channel, functions, set_up.time_limit_s).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
