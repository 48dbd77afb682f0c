"""The episode of the bench: it waits for a random time, and says when it stopped waiting.

So whoever reads what it said knows how long it was on its way, and needs to ask nobody. All processes of a
machine share the clock.
"""

import asyncio
import re
import time

from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.chat import Chat

_PADDING = "The tool has found nothing that speaks against it, and asks for the next call. " * 2
_SAID = re.compile(r"replied at (\d+\.\d{6})")


async def reply_for_ever(chat: Chat, row: Row, mean_wait_s: float) -> float:
    """Take a turn, wait, reply, and so on; waits are exponential, so replies come at random moments."""
    await chat.turn("Begin.")
    while True:
        await asyncio.sleep(chat.rng.expovariate(1.0 / mean_wait_s))
        await chat.turn(f"{_PADDING}replied at {time.monotonic():.6f}")


def replied_at(text: str) -> float | None:
    """When the last reply of a conversation was there; None where there is none yet."""
    found = _SAID.findall(text)
    return float(found[-1]) if found else None
