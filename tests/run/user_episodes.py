"""Episodes of a user, well-behaved and not, as a file that episode workers import."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.blocking_chat import BlockingChat
from dora_rl.envs.episodes.chat import Chat


async def three_turns(chat: Chat, row: Row) -> float:
    """Three turns; each must have been answered with how many there were before."""
    texts = [(await chat.turn(word)).text for word in ("one", "two", "three")]
    return float(texts == ["0", "1", "2"]) + ("torch" in sys.modules) + ("transformers" in sys.modules)


def blocking(chat: BlockingChat, row: Row, pause_s: float = 0.0) -> float:
    """The same in a thread, and slowly."""
    texts = []
    for word in ("one", "two", "three"):
        texts.append(chat.turn(word).text)
        time.sleep(pause_s)
    return float(texts == ["0", "1", "2"])


async def as_told(chat: Chat, row: Row) -> float:
    """Do what the row says after a first turn."""
    await chat.turn("one")
    match row.prompt:
        case "exit":
            os._exit(3)
        case "fill the memory":
            bytearray(1 << 40)
        case "keep the loop":
            time.sleep(60)
        case "hang in a thread":
            await asyncio.to_thread(time.sleep, 60)
        case "clean up":
            try:
                await chat.turn("never")
            finally:
                Path(row.columns["mark"]).touch()
    return float((await chat.turn("two")).text)


def hang_in_a_thread(chat: BlockingChat, row: Row) -> float:
    """Hang where the row says so."""
    chat.turn("one")
    if row.prompt == "hang":
        time.sleep(60)
    return float(chat.turn("two").text)


class Exits:
    """Ends its process as soon as it is made."""

    def __init__(self) -> None:
        os._exit(3)

    async def __call__(self, chat: Any) -> float:
        return 0.0


class Broken:
    """Cannot be made."""

    def __init__(self) -> None:
        raise OSError("no such game")

    async def __call__(self, chat: Any) -> float:
        return 0.0
