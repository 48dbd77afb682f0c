"""The process that episodes run in: `python -m dora_rl.run.workers.episode_worker ADDRESS`.

    reader thread    the channel's: messages in; when the owner is gone, ends the process and all it started
    listener thread  hands them to the loop
    main thread      the loop: async episodes, the chats of all, the codec
    threads          blocking episodes and blocking tools
    signs of life    says that the process lives, whatever its code does; gives up a loop that is kept for too
                     long by code that awaits nothing

Never imports torch unless a user's module does.
"""

import asyncio
import io
import resource
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

from dora_rl.envs.chat.open_codec import open_codec
from dora_rl.envs.episodes.episode_function import load_episode
from dora_rl.envs.episodes.episode_messages import EpisodeCommand, OpenWorker, WorkerReady
from dora_rl.envs.episodes.judge import EpisodeJudge, load_judging
from dora_rl.envs.episodes.limits import EpisodeLimits
from dora_rl.envs.episodes.role import player_of
from dora_rl.envs.episodes.runner import EpisodeRunner
from dora_rl.launch.breaking import telling_why
from dora_rl.launch.channel import Channel
from dora_rl.launch.messages import Alive, Broken, Stop

_SIGN_OF_LIFE_S = 1.0
_SHORTEST_LIMIT_S = 3.0
"""Seconds for which any loop may be kept: a busy machine does that too."""


class SignsOfLife:
    """A thread that tells the owner that the process lives, and looks after its loop."""

    def __init__(self, channel: Channel) -> None:
        """Begin to give signs of life."""
        self._channel = channel
        self._num_unanswered = 0
        """How often the loop was asked to answer since it last did."""
        self._watched: tuple[asyncio.AbstractEventLoop, EpisodeRunner, float] | None = None
        threading.Thread(target=self._speak, name="signs of life", daemon=True).start()

    def watch(self, loop: asyncio.AbstractEventLoop, runner: EpisodeRunner, limit_s: float) -> None:
        """From now on end the process if its loop does not turn for `limit_s` seconds, or a few if less."""
        self._watched = (loop, runner, max(limit_s, _SHORTEST_LIMIT_S))

    def _turned(self) -> None:
        self._num_unanswered = 0

    def _speak(self) -> None:
        while True:
            self._channel.send(Alive())
            if self._watched is not None:
                self._look(*self._watched)
            time.sleep(_SIGN_OF_LIFE_S)

    def _look(self, loop: asyncio.AbstractEventLoop, runner: EpisodeRunner, limit_s: float) -> None:
        # Counted, not timed: a process that was stopped for a while would find that much time had passed.
        self._num_unanswered += 1
        if self._num_unanswered * _SIGN_OF_LIFE_S <= limit_s:
            loop.call_soon_threadsafe(self._turned)
            return
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = "".join(traceback.format_stack(frame))
        print(f"The loop of this process did not turn for {limit_s:g} s:\n{stack}", file=sys.stderr)
        culprit = runner.blocked(asyncio.current_task(loop), limit_s, stack)
        if culprit is not None:
            self._channel.send(culprit)
        message = f"was kept for {limit_s:g} s by an episode that awaited nothing; `def` episodes may block"
        self._channel.send(Broken(message=message))
        self._channel.leave(1)


async def serve(channel: Channel, opened: OpenWorker, signs: SignsOfLife) -> None:
    """Import the function, open the codec, say so, and run episodes until the owner says Stop."""
    if opened.memory_bytes is not None:
        # Memory that is written to; what a library only reserves does not count.
        resource.setrlimit(resource.RLIMIT_DATA, (opened.memory_bytes, opened.memory_bytes))
    limits = EpisodeLimits(
        start_limit_s=opened.start_limit_s, call_limit_s=opened.call_limit_s, limit_s=opened.limit_s
    )
    runner = EpisodeRunner(
        load_episode(opened.function, opened.options, opened.objects, sandbox=opened.sandbox),
        open_codec(
            Path(opened.tokenizer),
            thinking=opened.thinking,
            tool_calls=opened.tool_calls,
            template_options=opened.template_options,
        ),
        limits,
        channel.send,
        run=opened.run,
        roles={name: player_of(name, settings) for name, settings in opened.roles.items()},
        judge=EpisodeJudge([load_judging(reward, opened.objects) for reward in opened.rewards]),
        endpoint=opened.endpoint,
    )
    loop, is_stopped = asyncio.get_running_loop(), asyncio.Event()

    def listen() -> None:
        while not isinstance(message := channel.receive(), Stop):
            loop.call_soon_threadsafe(runner.tell, message)
        loop.call_soon_threadsafe(is_stopped.set)

    threading.Thread(target=listen, name="listener", daemon=True).start()
    signs.watch(loop, runner, min(limits.start_limit_s, limits.call_limit_s))
    channel.send(WorkerReady())
    await is_stopped.wait()
    await runner.stop()


def main(address: str) -> NoReturn:
    """Run episodes as this process until told to stop or the owner is gone."""
    # It may end by being killed: what was printed into a file has to be there by then.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    channel = Channel.connect(address, EpisodeCommand | Stop)
    with telling_why(channel):
        opened = channel.receive()
        assert isinstance(opened, OpenWorker), f"the first message says what to import: {opened}"
        # Episodes that are left are cancelled, so that their environments can clean up.
        asyncio.run(serve(channel, opened, SignsOfLife(channel)))
    channel.leave()


if __name__ == "__main__":
    main(sys.argv[1])
