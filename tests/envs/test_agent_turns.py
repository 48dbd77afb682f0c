"""Agents over HTTP as turns of an episode: branches, echoes, retries, truncation, being begun again."""

import asyncio
import json
from typing import Any

import pytest

aiohttp = pytest.importorskip("aiohttp")

from dora_rl.core.errors import UserError  # noqa: E402
from dora_rl.envs.endpoint.server import aiohttp_web  # noqa: E402
from dora_rl.envs.episodes.branch import ROOT  # noqa: E402
from dora_rl.envs.episodes.chat import Chat  # noqa: E402
from dora_rl.envs.episodes.episode_messages import EpisodeBroken, EpisodeDone  # noqa: E402

from .endpoint_client import Client  # noqa: E402
from .scripted_run import LetterCodec, ScriptedRun, begin, text  # noqa: E402

CALL = 'CALL add {"a": 1, "b": 2}'
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
SUB = {"type": "function", "function": {"name": "sub", "parameters": {"type": "object", "properties": {}}}}


def numbered() -> Any:
    """A policy that never says the same twice."""
    said = iter(range(1000))
    return lambda context: f"answer {next(said)}"


def play(agent: Any, run: ScriptedRun | None = None, **choices: Any) -> tuple[Any, ScriptedRun]:
    """The end of an episode that is an agent with a client, and the run that answered it."""
    run = run or ScriptedRun(numbered())
    run.contexts.clear()
    run.ends.clear()

    async def episode(chat: Chat, row: Any) -> Any:
        async with aiohttp.ClientSession() as session:
            return await agent(Client(session, chat.base_url, chat.api_key), chat)

    async def played() -> Any:
        runner = run.runner(episode, **choices)
        runner.tell(begin())
        try:
            return await run.end_of(0)
        finally:
            await runner.stop()

    return asyncio.run(played()), run


def user(said: str) -> dict[str, str]:
    return {"role": "user", "content": said}


async def message(client: Client, *messages: Any, **fields: Any) -> Any:
    return (await client.chat(*messages, **fields))["choices"][0]["message"]


def test_an_agent_s_conversation_is_one_branch_and_its_tokens_are_what_was_drawn() -> None:
    async def agent(client: Client, chat: Chat) -> float:
        history: list[Any] = [{"role": "system", "content": "be brief"}]
        for number in range(4):
            history.append(user(f"q{number}"))
            history.append(await message(client, *history))
        return 1.0

    end, run = play(agent)
    assert isinstance(end, EpisodeDone)
    assert {asked.branch for asked in run.asked()} == {ROOT}
    assert [asked.number for asked in run.asked()] == [0, 1, 2, 3]
    context = text(run.contexts[0, ROOT])
    assert context == (
        "[system]be brief[user]q0[assistant]answer 0\x03[user]q1[assistant]answer 1\x03"
        "[user]q2[assistant]answer 2\x03[user]q3[assistant]answer 3\x03"
    )
    assert end.values == {
        "endpoint/requests": 4.0,
        "endpoint/branches": 0.0,
        "endpoint/retries": 0.0,
        "endpoint/sampling": 0.0,
    }


ECHOES = (
    lambda said: said,
    lambda said: {"role": "assistant", "content": said["content"], "tool_calls": said["tool_calls"]},
    lambda said: {**said, "content": said["content"] or "", "name": "agent", "function_call": None},
    lambda said: {
        **said,
        "content": [{"type": "text", "text": said["content"] or ""}],
        "tool_calls": [
            {
                "id": "call_1",
                "index": 0,
                "type": "function",
                "function": {"arguments": '{"b":2,\n "a": 1}', "name": "add"},
            }
        ],
    },
)


@pytest.mark.parametrize("echo", ECHOES)
def test_however_a_client_echoes_it_goes_on_with_its_branch(echo: Any) -> None:
    async def agent(client: Client, chat: Chat) -> float:
        said = await message(client, "add", tools=[ADD])
        called = json.loads(said["tool_calls"][0]["function"]["arguments"])
        assert called == {"a": 1, "b": 2}
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "3"}
        await message(client, "add", echo(said), result, tools=[ADD])
        return 1.0

    end, run = play(agent, ScriptedRun(lambda context: CALL if context.endswith("add[assistant]") else "3"))
    assert isinstance(end, EpisodeDone), end
    assert {asked.branch for asked in run.asked()} == {ROOT}


def test_calls_that_are_said_twice_have_two_ids() -> None:
    async def agent(client: Client, chat: Chat) -> float:
        first = await message(client, "a", tools=[ADD])
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "3"}
        second = await message(client, "a", first, result, tools=[ADD])
        return float(first["tool_calls"][0]["id"] != second["tool_calls"][0]["id"])

    assert play(agent, ScriptedRun(lambda context: CALL))[0].reward == 1.0


def test_what_goes_on_further_back_forks_there_behind_the_drawn_tokens() -> None:
    async def agent(client: Client, chat: Chat) -> float:
        first = await message(client, "q0")
        assert first.pop("reasoning_content") == "well"
        await message(client, "q0", first, "q1")
        await message(client, "q0", first, "other")
        await message(client, "q0", first, "q1")
        return 1.0

    said = numbered()
    _, run = play(agent, ScriptedRun(lambda context: f"<well>{said(context)}"))
    asked = run.asked()
    branches = [each.branch for each in asked]
    assert branches[:2] == [ROOT, ROOT]
    assert len(set(branches)) == 3
    assert text(asked[2].tokens) == "[user]q0[assistant]<well>answer 0\x03[user]other[assistant]"
    assert text(asked[3].tokens) == "[user]q0[assistant]<well>answer 0\x03[user]q1[assistant]"


def test_what_repeats_nothing_and_other_tools_open_branches() -> None:
    async def agent(client: Client, chat: Chat) -> float:
        first = await message(client, "q0", tools=[ADD])
        await message(client, "summary of q0")
        await message(client, "q0", first, "q1", tools=[SUB])
        await message(client, "q0", {**first, "content": "changed"}, "q1", tools=[ADD])
        return 1.0

    end, run = play(agent)
    assert len({asked.branch for asked in run.asked()}) == 4
    assert all(asked.is_new for asked in run.asked())
    assert end.values["endpoint/branches"] == 3.0


def test_several_answers_are_branches_beside_each_other_and_each_can_be_gone_on_with() -> None:
    async def agent(client: Client, chat: Chat) -> float:
        choices = (await client.chat("q0", n=3))["choices"]
        texts = [choice["message"]["content"] for choice in choices]
        assert sorted(texts) == ["answer 0", "answer 1", "answer 2"]
        await message(client, "q0", choices[2]["message"], "q1")
        return 1.0

    _, run = play(agent)
    branches = [asked.branch for asked in run.asked()]
    assert branches[0] == ROOT
    assert len(set(branches)) == 3
    assert branches[3] == branches[2]


def test_an_agent_that_is_begun_again_is_answered_from_what_is_recorded() -> None:
    async def agent(client: Client, chat: Chat) -> float:
        first = await message(client, "q0")
        beside = [message(client, "q0", first, f"part {number}") for number in range(4)]
        parts = await asyncio.gather(*beside)
        whole = ", ".join(sorted(part["content"] for part in parts))
        end = await message(client, f"put together {whole}", n=2)
        return float(len(end["content"]))

    # Side by side from one place the first to come goes on with the branch: that order has to be the same.
    first, run = play(agent)
    drawn = run.num_drawn
    again, _ = play(agent, run)
    assert (again.reward, run.num_drawn) == (first.reward, drawn)


def test_fresh_conversations_that_race_are_the_same_branches_in_any_order() -> None:
    order = [0, 1, 2, 3]

    async def agent(client: Client, chat: Chat) -> float:
        await message(client, "begin")
        for number in order:
            await message(client, f"part {number}")
        return 1.0

    _, run = play(agent)
    drawn = run.num_drawn
    order.reverse()
    end, _ = play(agent, run)
    assert isinstance(end, EpisodeDone)
    assert run.num_drawn == drawn


def test_a_stop_string_is_the_engine_s_to_look_for_and_is_left_out_of_what_is_sent() -> None:
    async def agent(client: Client, chat: Chat) -> float:
        first = await message(client, "q0", stop="END")
        assert first["content"] == "so far "
        await message(client, "q0", first, "q1")
        return 1.0

    end, run = play(agent, ScriptedRun(lambda context: "so far END."))
    assert isinstance(end, EpisodeDone)
    assert [asked.stop for asked in run.asked()] == [("END",), ()]
    assert {asked.branch for asked in run.asked()} == {ROOT}
    assert "so far END.\x03" in text(run.contexts[0, ROOT]), "what was drawn stays in the branch"


def test_a_conversation_that_cannot_be_rendered_is_refused_and_the_root_is_left_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_any = LetterCodec.begin

    def begin_some(self: LetterCodec, messages: Any, tools: Any = ()) -> list[int]:
        if len(messages) > 1:
            raise UserError("roles must alternate")
        return begin_any(self, messages, tools)

    monkeypatch.setattr(LetterCodec, "begin", begin_some)

    async def agent(client: Client, chat: Chat) -> float:
        status, answer = await client.post("chat/completions", {"messages": [user("a"), user("b")]})
        assert (status, answer["error"]["message"]) == (400, "roles must alternate")
        await message(client, "a")
        return 1.0

    end, run = play(agent)
    assert isinstance(end, EpisodeDone), end
    assert [asked.branch for asked in run.asked()] == [ROOT]


def test_a_retry_takes_no_turn() -> None:
    async def agent(client: Client, chat: Chat) -> float:
        first = await message(client, "q0")
        again = await message(client, "q0", headers={"x-stainless-retry-count": "1"})
        assert first == again
        other = await message(client, "q0")
        return float(other["content"] != first["content"])

    end, run = play(agent)
    assert (end.reward, len(run.asked()), end.values["endpoint/retries"]) == (1.0, 2, 1.0)


@pytest.mark.parametrize(
    ("reason", "code"), [("context", "context_length_exceeded"), ("turns", "episode_truncated")]
)
def test_a_truncated_episode_tells_its_agent_so_and_ends_as_truncated(reason: str, code: str) -> None:
    async def agent(client: Client, chat: Chat) -> float:
        first = await message(client, "q0")
        body = {"messages": [user("q0"), first, user("q1")]}
        status, answer = await client.post("chat/completions", body)
        assert (status, answer["error"]["code"]) == (400, code)
        return 0.5

    end, _ = play(agent, ScriptedRun(lambda context: f"!{reason}" if "q1" in context else "fine"))
    assert isinstance(end, EpisodeDone), end
    assert (end.reward, end.is_truncated) == (0.5, True)


def test_when_an_episode_is_over_its_agent_is_told_so() -> None:
    seen: list[Any] = []

    async def agent(client: Client, chat: Chat) -> float:
        async def late() -> None:
            async with aiohttp.ClientSession() as session:
                own = Client(session, client.url, client.key)
                seen.append(await own.post("chat/completions", {"messages": [user("slow")]}))

        seen.append(asyncio.create_task(late()))
        while len(run.asked()) < 1:
            await asyncio.sleep(0.01)
        raise ValueError("enough")

    run = ScriptedRun(numbered(), delay_s=lambda asked: 60.0)

    async def episode(chat: Chat, row: Any) -> Any:
        return await agent(Client(None, chat.base_url, chat.api_key), chat)  # type: ignore[arg-type]

    async def played() -> Any:
        runner = run.runner(episode)
        runner.tell(begin())
        end = await run.end_of(0)
        await seen[0]
        await runner.stop()
        return end

    assert isinstance(asyncio.run(played()), EpisodeBroken)
    status, answer = seen[1]
    assert (status, answer["error"]["code"]) == (410, "gone")


def test_a_blocking_episode_has_the_same_door_and_a_fresh_chat_its_own() -> None:
    def episode(chat: Any, row: Any) -> float:
        urls = {chat.base_url, chat.base_url, chat.fresh(trains=False).base_url}
        assert len(urls) == 2
        assert all(url.startswith("http://127.0.0.1:") and url.endswith("/v1") for url in urls)
        chat.turn("a")
        return float(len(chat.api_key) > 40)

    run = ScriptedRun()

    async def played() -> Any:
        runner = run.runner(episode)
        runner.tell(begin())
        end = await run.end_of(0)
        await runner.stop()
        return end

    assert asyncio.run(played()).reward == 1.0


def test_where_the_server_s_package_is_missing_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "aiohttp.web", None)
    with pytest.raises(UserError, match="an endpoint needs the package 'aiohttp'"):
        aiohttp_web()
