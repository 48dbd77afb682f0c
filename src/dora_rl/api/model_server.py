"""A server's loop: requests are answered by instances until a signal, and a run's versions are taken over."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from dora_rl.envs.chat.codec import Codec
from dora_rl.envs.endpoint.server import Endpoint
from dora_rl.launch.messages import Broken
from dora_rl.launch.protocol import Handle, Launch
from dora_rl.model.tokenizer import open_tokenizer
from dora_rl.prepare.messages import NewestTaken, ServingPrepared, TakeNewest
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.serving.engine_answers import EngineAnswers
from dora_rl.run.serving.served_instances import ServedInstances

_LOOK_EVERY_S = 2.0
"""Seconds between two looks for a newer version of the run."""

Named = Callable[[int | None], str]
"""The name of what answers, by its version in its run."""


class Serving(Struct, frozen=True, kw_only=True):
    """A server that takes requests."""

    url: str
    """The base URL for clients."""
    key: str
    model: str
    """The name of what answers, with its version where it is of a run."""
    context_tokens: int
    """Most tokens of a conversation with its answer."""


async def answer_requests(
    endpoint: Endpoint,
    prepared: ServingPrepared,
    codec: Codec,
    *,
    key: str | None,
    named: Named,
    ready: Callable[[Serving], None],
    follows: Handle | None,
    tell: Callable[[str], None],
    launch: Launch,
) -> Mapping[str, int]:
    """Answer requests until a signal to end; returns what was counted. Raises if an instance dies.

    `follows` is the preparing worker, where a run's newer versions are to be taken over.
    """
    stopped, setup = _signalled(), prepared.setup
    stop_tokens = tuple(sorted({*prepared.stop_tokens, *codec.stop_ids}))
    tokenizer = open_tokenizer(LiveLayout(root=Path(setup.run_directory)).tokenizer)
    names = {prepared.version.number: named(prepared.version.run_version)}
    context_tokens = setup.engine.limits.max_positions
    with ServedInstances(setup, stop_tokens, launch=launch) as instances:
        answers = EngineAnswers(
            codec,
            instances,
            context_tokens=context_tokens,
            stop_tokens=stop_tokens,
            stop_strings=setup.recipe.response.stop_strings,
            sampling=setup.recipe.sampling,
            token_text=lambda id: str(tokenizer.decode([id], skip_special_tokens=False)),
            names=names,
        )
        await _first(stopped.wait(), _raised(instances), instances.settled())
        if not stopped.is_set():
            account = endpoint.open("", answers, key=key)
            ready(
                Serving(
                    url=endpoint.url(""), key=account.key, model=answers.model, context_tokens=context_tokens
                )
            )
            following = [] if follows is None else [_follow(follows, instances, names, named, tell)]
            await _first(stopped.wait(), _raised(instances), *following)
        endpoint.close("")
        return answers.counts


async def _follow(
    worker: Handle,
    instances: ServedInstances,
    names: dict[int, str],
    named: Named,
    tell: Callable[[str], None],
) -> None:
    """Take up every newer version of the run; where that ends, the last one goes on answering."""
    loop, words = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def hear() -> None:
        worker.flush()
        for word in worker.receive():
            words.put_nowait(word)
        if not worker.is_alive:
            loop.remove_reader(worker.fileno())
            words.put_nowait(None)

    loop.add_reader(worker.fileno(), hear)
    worker.send(TakeNewest())
    last_words = "the process that reads its versions has ended"
    while (word := await words.get()) is not None:
        if isinstance(word, Broken):
            last_words = word.message
        if not isinstance(word, NewestTaken):
            continue
        if word.version is not None:
            names[word.version.number] = named(word.version.run_version)
            await instances.load(word.version.number)
            tell(f"{names[word.version.number]} answers now")
            await instances.settled()
        await asyncio.sleep(_LOOK_EVERY_S)
        worker.send(TakeNewest())
    tell(f"the run is not followed any more: {last_words}")
    await asyncio.Event().wait()


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait for one of several; raises what it raised, and gives the others up."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _raised(instances: ServedInstances) -> None:
    """Raise what an instance died of; who gives this up leaves it to the next who waits."""
    await asyncio.shield(instances.broken)


def _signalled() -> asyncio.Event:
    """An event that a signal to end sets, in the main thread."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Elsewhere than in the main thread, or where somebody has a hang-up ignored.
        with suppress(ValueError, RuntimeError):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, stopped.set)
    return stopped
