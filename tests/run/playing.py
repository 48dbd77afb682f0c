"""Episodes that tests run: a few turns with all that a chat can do."""

import asyncio
from pathlib import Path

from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.turn import EpisodeTruncated


async def play(chat: Chat, row: Row, effects: str = "") -> float:
    """Two turns, a fork of one, a sub-agent that is not trained on, and a side effect that is noted."""
    first = await chat.turn("say")
    chat.reward(0.25 * len(first.tokens) / 48)
    beside = chat.fork()
    second = await chat.turn(f"again {chat.task_rng.randint(0, 9)}")
    if effects:
        note = await chat.once("note", lambda key: _noted(effects, key))
        assert note == "noted"
    other = await beside.turn(f"or {chat.rng.randint(0, 9)}")
    judge = chat.fresh("judge", trains=False)
    await judge.turn(max_tokens=3)
    return float(len(second.tokens) > len(other.tokens))


def _noted(effects: str, key: str) -> str:
    with Path(effects).open("a") as file:
        file.write(f"{key}\n")
    return "noted"


async def served(chat: Chat, row: Row) -> float:
    """A user who is played by somebody else opens the conversation and answers once."""
    user = chat.role("user", f"row {row.row}")
    turn = await chat.turn((await user.turn("Hello?")).text, max_tokens=6)
    said = (await user.turn(turn.text)).text
    turn = await chat.turn(said, max_tokens=6)
    return float(len(turn.tokens))


async def saved(chat: Chat, row: Row, effects: str) -> float:
    """Four turns whose state is saved after each; what was played before a state is noted if it is again."""
    texts = chat.restored.decode().split("|") if chat.restored is not None else []
    if chat.restored is not None:
        _noted(effects, f"restored {len(texts)}")
    while len(texts) < 4:
        turn = await chat.turn(f"say {len(texts)} {chat.rng.randint(0, 9)}", max_tokens=6)
        chat.reward(0.125 * len(turn.tokens))
        texts.append(str(len(turn.tokens)))
        await chat.snapshot("|".join(texts).encode())
    return float(texts[0] < texts[-1])


async def straggles(chat: Chat, row: Row, closed: str) -> float:
    """One member of each group, and one group as a whole, would play on for ever; its end is noted."""
    turn = await chat.turn("say")
    begin = chat._episode.begin
    if begin.member == 2 or (begin.epoch, begin.row.row) == (0, 1):
        _noted(closed, f"opened {begin.epoch} {begin.row.row} {begin.member}")
        try:
            while True:
                await chat.turn("again", max_tokens=2)
                await asyncio.sleep(0.05)
        except EpisodeTruncated:
            await asyncio.Event().wait()
        finally:
            _noted(closed, f"closed {begin.epoch} {begin.row.row} {begin.member}")
    return float(len(turn.tokens))


async def fails(chat: Chat, row: Row) -> float:
    """Raises after its first turn."""
    await chat.turn("say")
    raise KeyError("door")
