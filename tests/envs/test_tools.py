"""Python functions as tools: what the policy is told, and what it gets to read."""

import asyncio
import weakref
from typing import Any, Literal

import pytest

from dora_rl.envs.episodes.blocking_chat import BlockingChat
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.tools import ToolBox

from .scripted_run import play, text


def add(first: int, second: int = 1, *, unit: Literal["m", "s"] = "m") -> str:
    """Add two numbers,
    with a unit.

    Args:
        first: The first of them.
        second (int): The other.

    Returns:
        unit: not an argument.
    """
    return f"{first + second} {unit}"


async def fetch(place: str) -> dict[str, str]:
    """Fetch what is at a place."""
    await asyncio.sleep(0)
    return {"at": place}


def fail() -> None:
    """Fail whatever happens."""
    raise LookupError("nothing there")


class Room:
    """An environment with a tool."""

    def __init__(self) -> None:
        self.doors = 3

    def open(self, door: int) -> int:
        """Open a door."""
        self.doors -= 1
        return self.doors


def test_a_method_is_a_tool_and_its_object_is_not_kept() -> None:
    room = Room()
    gone = weakref.ref(room)
    (schema,) = ToolBox([room.open]).schemas
    assert list(schema["function"]["parameters"]["properties"]) == ["door"]
    del room
    assert gone() is None


CALLS = {
    'add {"first": 2}': "3 m",
    'add {"first": "2", "second": 5, "unit": "s"}': "7 s",
    "add {}": "error: the argument 'first' is missing",
    'add {"first": "two"}': "error: the argument 'first' is wrong: Expected `int`, got `str`",
    'add {"frist": 2, "first": 1}': "error: there is no argument 'frist'; did you mean 'first'?",
    'fetch {"place": "x"}': '{"at":"x"}',
    "fail {}": "error: LookupError: nothing there",
    "ad {}": "error: there is no tool 'ad'; did you mean 'add'?",
    "add nonsense": "error: The call is not valid JSON.",
    'open {"door": 1}': "2",
}


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_whatever_the_policy_calls_is_answered_with_text(call: str, is_async: bool) -> None:
    async def agent(chat: Chat) -> None:
        turn = await chat.turn("go", tools=[add, fetch, fail, Room().open])
        while turn.tool_calls:
            turn = await chat.turn(*await chat.use_tools(turn))

    def blocking(chat: BlockingChat) -> None:
        turn = chat.turn("go", tools=[add, fetch, fail, Room().open])
        while turn.tool_calls:
            turn = chat.turn(*chat.use_tools(turn))

    def policy(context: str) -> str:
        return "done" if "[tool]" in context else f"CALL {call}"

    end, run = play(agent if is_async else blocking, policy)
    assert not hasattr(end, "reason"), end
    assert text(run.asked()[1].tokens) == f"[tool]{CALLS[call]}[assistant]"


def test_a_tool_given_as_a_schema_is_the_episodes_to_call() -> None:
    schema: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {}}}

    async def agent(chat: Chat) -> None:
        await chat.use_tools(await chat.turn("go", tools=[schema]))

    end, _ = play(agent, lambda context: "CALL look {}")
    assert end.reason == "raised"
    assert "so the episode must call it" in end.detail


def test_a_tool_may_take_turns_of_its_own_and_is_truncated_with_its_episode() -> None:
    async def agent(chat: Chat) -> None:
        async def ask(what: str) -> str:
            """Ask somebody else."""
            return (await chat.fresh().turn(what)).text

        turn = await chat.turn("go", tools=[ask])
        await chat.use_tools(turn)

    end, _ = play(
        agent, lambda context: "!turns" if context.startswith("[user]who") else 'CALL ask {"what": "who"}'
    )
    assert end.is_truncated
