"""Episodes over the codecs of real families: tools, and thinking that is kept or stripped."""

import asyncio
from typing import Any, Literal

import pytest

from dora_rl.envs.chat.open_codec import choose_codec
from dora_rl.envs.chat.tool_calls import write_hermes, write_llama_json
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.episode_function import episode_function
from dora_rl.envs.episodes.episode_messages import EpisodeReply, TurnAsked, TurnTaken
from dora_rl.envs.episodes.runner import EpisodeRunner

from .chat_families import FAMILIES
from .scripted_run import LIMITS, begin


def look(where: str) -> str:
    """Look somewhere."""
    return f"a book {where}"


async def agent(chat: Chat) -> float:
    turn = await chat.turn("Where is the book?", tools=[look])
    rounds = 0
    while turn.tool_calls and rounds < 2:
        turn, rounds = await chat.turn(*await chat.use_tools(turn)), rounds + 1
    await chat.turn("And the table?")
    return float(rounds)


Thinking = Literal["keep", "strip"]


@pytest.mark.parametrize("thinking", ["keep", "strip"])
@pytest.mark.parametrize("name", FAMILIES)
def test_an_agent_with_tools_runs_over_every_family(name: str, thinking: Thinking) -> None:
    # Nobody thinks anything, so nothing has to be stripped of it.
    (only,) = branches_of(name, thinking, "It is here.")
    assert only.count("a book here") == 1
    assert only.count("It is here.") == 1


def test_thinking_is_kept_in_one_branch_or_stripped_in_another() -> None:
    thought = "<think>\nhm\n</think>\n\nIt is here."
    (kept,) = branches_of("qwen3", "keep", thought)
    assert kept.count("hm") == 1
    first, second = branches_of("qwen3", "strip", thought)
    assert ("hm" in first, "And the table?" in first) == (True, False)
    assert ("hm" in second, "And the table?" in second) == (False, True)


def branches_of(name: str, thinking: Thinking, answer: str) -> list[str]:
    """The text of each branch of an agent that calls a tool, answers, and is asked again."""
    tokenizer = FAMILIES[name]()
    codec = choose_codec(tokenizer, thinking=thinking, tool_calls="auto", options={})
    write = write_llama_json if name == "llama3" else write_hermes
    answers = [write("look", {"where": "here"}), answer, "There."]
    stop = min(codec.stop_ids)
    asked: list[TurnAsked] = []
    branches: dict[int, list[int]] = {}
    ends: list[EpisodeReply] = []

    async def played() -> None:
        def say(word: EpisodeReply) -> None:
            if not isinstance(word, TurnAsked):
                ends.append(word)
                return
            tokens = (*tokenizer.encode(answers[len(asked)]), stop)
            asked.append(word)
            branches.setdefault(word.branch, []).extend((*word.tokens, *tokens))
            taken = TurnTaken(episode=0, branch=word.branch, number=word.number, tokens=tokens, finish="stop")
            asyncio.get_running_loop().call_soon(runner.tell, taken)

        runner = EpisodeRunner(episode_function("agent", agent, {}), codec, LIMITS, say, run="run")
        runner.tell(begin())
        while not ends:
            await asyncio.sleep(0.001)

    asyncio.run(played())
    end: Any = ends[0]
    assert end.reward == 1.0, end
    assert len(asked) == 3
    return [tokenizer.said(ids) for ids in branches.values()]
