"""The process that runs reward functions: `python -m dora_rl.run.workers.reward_worker ADDRESS`.

    reader thread   the channel's: messages in; when the owner is gone, ends the process and all it started
    main thread     synchronous functions, one request after the other; signals and asyncio.run work
    loop thread     asynchronous functions, many requests at a time

Never imports torch unless a user's module does.
"""

import asyncio
import io
import sys
import threading
from collections.abc import Callable

from dora_rl.core.errors import UserError
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.scoring.functions import RewardFunction, load_function
from dora_rl.envs.scoring.reward_messages import (
    Began,
    Needs,
    Ready,
    ScoreRequest,
    SetUp,
    Unusable,
    WorkerInput,
)
from dora_rl.envs.scoring.reward_scorer import Scorer, Scores
from dora_rl.launch.channel import Channel
from dora_rl.launch.messages import Stop


class RewardWorker:
    """Answers score requests until the owner hangs up."""

    def __init__(self, channel: Channel, functions: list[RewardFunction], time_limit_s: float) -> None:
        self._channel = channel
        self._scorer = Scorer(functions, time_limit_s=time_limit_s, began=self._began)
        self._loop = asyncio.new_event_loop()

    def run(self) -> None:
        """Serve until the owner is gone: a process then ends at once, a thread is told to stop."""
        threading.Thread(target=self._run_loop, name="loop", daemon=True).start()
        while not isinstance(request := self._channel.receive(), Stop):
            assert isinstance(request, ScoreRequest), f"after the first message only requests come: {request}"
            scores = self._scorer.call_plain(request)
            if self._scorer.is_async(request.per):
                asyncio.run_coroutine_threadsafe(self._finish(scores), self._loop)
            else:
                self._channel.send(scores.result())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run_loop(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _finish(self, scores: Scores) -> None:
        await self._scorer.call_async(scores)
        self._channel.send(scores.result())

    def _began(self, request: int, function: RewardFunction) -> None:
        self._channel.send(Began(request=request, function=function.label, is_async=function.is_async))


def main(address: str) -> None:
    """Import the reward functions, say that they are ready, and serve as this process."""
    # It ends by being killed: what was printed into a file has to be there by then.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    channel = Channel.connect(address, WorkerInput)
    set_up = channel.receive()
    assert isinstance(set_up, SetUp), f"the first message says what to import: {set_up}"
    serve(channel, set_up, lambda reward: load_function(reward, set_up.objects))


def serve(channel: Channel, set_up: SetUp, load: Callable[[RewardConfig], RewardFunction]) -> None:
    """Import the reward functions, say that they are ready, and answer until the owner is gone."""
    try:
        functions = [load(reward).ready() for reward in set_up.rewards]
    except UserError as error:
        channel.send(Unusable(message=error.message, hint=error.hint))
        return
    needs = tuple(Needs(function=function.label, columns=function.required) for function in functions)
    channel.send(Ready(needs=needs, is_concurrent=any(function.is_async for function in functions)))
    RewardWorker(channel, functions, set_up.time_limit_s).run()


if __name__ == "__main__":
    main(sys.argv[1])
