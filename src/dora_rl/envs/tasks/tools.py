"""`tools`: `17-5+8` with a calculator that does one operation a call, over several turns.

The policy calls `add`, `sub` or `mul` with two numbers, reads the result and what is left of the expression
(`12+8`), calls again, and at last says the value. Expressions are worked off from left to right; pairs of
first numbers are kept back for held-out rows.

Each row also has a `demonstration` for a warm start, turn by turn, by a sloppy teacher, who now and then says
the value so far where another call is due. A model that imitates it knows how a tool is called and seldom
gets to the end; the reward teaches that.
"""

import random
import re
from collections.abc import Iterator
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.envs.data.rows import Row, read_rows
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.tasks.task import Task

_MAX_CALLS = 6
_OPERATION = re.compile(r"[-+*]\d+")
"""An operation and its number: an expression is a number and some of them."""


def add(a: int, b: int) -> int:
    """a + b."""
    return a + b


def sub(a: int, b: int) -> int:
    """a - b."""
    return a - b


def mul(a: int, b: int) -> int:
    """a * b."""
    return a * b


TOOLS = {"+": add, "-": sub, "*": mul}


async def calculator(chat: Chat, row: Row) -> float:
    """Let the policy call tools until it says a value: 1 for the right one, else 0."""
    left = _OPERATION.findall(str(row.prompt))
    turn = await chat.turn(tools=TOOLS.values())
    for _ in range(_MAX_CALLS):
        if not turn.tool_calls:
            break
        results = await chat.use_tools(turn)
        left = left[len(results) :]
        last = {**results[-1], "content": f"{results[-1]['content']}{''.join(left)}"}
        turn = await chat.turn(*results[:-1], last)
    return float(turn.text.strip() == row.columns["solution"])


def tools(
    *,
    seed: int,
    rows: int = 1024,
    held_out_rows: int = 256,
    operations: int = 2,
    largest: int = 9,
    sloppiness: float = 0.3,
) -> Task:
    """The task `tools`: expressions of 1 up to `operations` operations on numbers from 1 to `largest`.

    `sloppiness` is the share of due calls in whose place the teacher stops.
    """
    if not (operations >= 1 and largest >= 4 and 0 <= sloppiness < 1):
        raise UserError(
            f"tools cannot draw with operations = {operations}, largest = {largest}, "
            f"sloppiness = {sloppiness}",
            hint="give operations >= 1, largest >= 4 and 0 <= sloppiness < 1",
        )

    def table(part: str, num_rows: int) -> Iterator[dict[str, Any]]:
        rng = random.Random(f"tools {part} {seed}")
        while num_rows:
            numbers = [rng.randint(1, largest) for _ in range(rng.randint(1, operations) + 1)]
            signs = [rng.choice(list(TOOLS)) for _ in numbers[1:]]
            if _is_held_out(numbers) == (part == "held out"):
                yield _row(rng, numbers, signs, sloppiness)
                num_rows -= 1

    return Task(
        name="tools",
        train=read_rows(table("train", rows), {}, "tools"),
        held_out=read_rows(table("held out", held_out_rows), {}, "tools"),
        rewards=(),
        max_new_tokens=80,
        episode=EpisodeSettings(
            function="dora_rl.envs.tasks.tools:calculator", max_turns=_MAX_CALLS + 1, max_context_tokens=512
        ),
    )


def _is_held_out(numbers: list[int]) -> bool:
    """Whether the first two numbers are held out: about one pair in seven."""
    return (3 * numbers[0] + 5 * numbers[1]) % 7 == 0


def _row(rng: random.Random, numbers: list[int], signs: list[str], sloppiness: float) -> dict[str, Any]:
    text, value = str(numbers[0]), numbers[0]
    for sign, number in zip(signs, numbers[1:], strict=True):
        text, value = f"{text}{sign}{number}", TOOLS[sign](value, number)
    return {
        "prompt": text,
        "solution": str(value),
        "demonstration": list(_demonstration(rng, numbers, signs, sloppiness)),
    }


def _demonstration(
    rng: random.Random, numbers: list[int], signs: list[str], sloppiness: float
) -> Iterator[str]:
    """The teacher's turns, one after the other; it reads what its own calls gave."""
    value = numbers[0]
    for sign, number in zip(signs, numbers[1:], strict=True):
        if rng.random() < sloppiness:
            break
        yield _call(TOOLS[sign].__name__, value, number)
        value = TOOLS[sign](value, number)
    yield str(value)


def _call(name: str, a: int, b: int) -> str:
    return f'<tool_call>{{"name":"{name}","arguments":{{"a":{a},"b":{b}}}}}</tool_call>'
