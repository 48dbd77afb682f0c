"""Roles that are not trained: asked over HTTP, written down, answered from there when all begins again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.named import load_named
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.episodes import RoleSettings
from dora_rl.core.struct_loader import build
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.blocking_chat import BlockingChat
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.episode_messages import OnceAsked
from dora_rl.envs.episodes.limits import EpisodeLimits
from dora_rl.envs.episodes.role import FrozenPlayer, RolePlayer

from .chat_server import Endpoint
from .scripted_run import STOP, ScriptedRun, ids, play, text

SCENE = {"role": "system", "content": "You want a refund."}


def player(endpoint: Endpoint, **choices: Any) -> dict[str, RolePlayer]:
    settings = RoleSettings(**{"url": endpoint.url, "model": "user-1"} | choices)
    return {"user": RolePlayer("user", settings)}


async def haggle(chat: Chat) -> float:
    """A user who opens the conversation, and answers what the policy says."""
    user = chat.role("user", SCENE)
    said = (await user.turn("How can I help?")).text
    for _ in range(2):
        turn = await chat.turn(said)
        said = (await user.turn(turn.text, max_tokens=9)).text
    assert [each["role"] for each in user.messages][:3] == ["system", "user", "assistant"]
    return float(said == "thanks")


def test_a_role_speaks_and_only_the_policys_turns_are_turns(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, "refund!"), (200, "why?"), (200, "thanks")]
    end, run = play(haggle, roles=player(endpoint, options={"temperature": 0.5}))
    assert end.reward == 1.0
    assert [each.branch for each in run.asked()] == [0, 0], "the policy was asked for two turns"
    first, second, third = endpoint.asked
    assert first["messages"] == [SCENE, {"role": "user", "content": "How can I help?"}]
    assert [each["content"] for each in third["messages"][-4:]] == ["refund!", "0", "why?", "1"]
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("user-1", 0.5, 512)
    assert second["max_tokens"] == 9
    assert len(set(endpoint.idempotency_keys)) == 3


def test_an_episode_that_is_begun_again_is_answered_with_what_the_role_said(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, "refund!"), (200, "why?"), (200, "thanks")]
    roles = player(endpoint)
    _, run = play(haggle, roles=roles)
    end, _ = play(haggle, run=run, roles=roles)
    assert end.reward == 1.0
    assert len(endpoint.asked) == 3, "nobody was asked again"
    assert run.num_drawn == 2


def test_what_a_role_was_told_is_part_of_the_name_of_its_turn(endpoint: Endpoint) -> None:
    async def ask(chat: Chat, words: str) -> float:
        await chat.role("user", SCENE).turn(words)
        await chat.turn("go")
        return 0.0

    async def one(chat: Chat) -> float:
        return await ask(chat, "one")

    async def two(chat: Chat) -> float:
        return await ask(chat, "two")

    keys = []
    for function in (one, two, one):
        _, run = play(function, roles=player(endpoint))
        keys += [word.key for word in run.said if isinstance(word, OnceAsked)]
    assert keys[0] == keys[2] != keys[1], "so a run notices that an episode says something else"


def test_forks_of_a_role_and_several_roles_have_numbers_of_their_own(endpoint: Endpoint) -> None:
    async def two(chat: Chat) -> float:
        user = chat.role("user", SCENE)
        first = await user.turn("Hello?")
        beside = user.fork()
        texts = await asyncio.gather(user.turn("a"), beside.turn("a"), chat.role("user", SCENE).turn("a"))
        await chat.turn(first.text)
        return float(len(texts))

    end, run = play(two, roles=player(endpoint))
    assert end.reward == 3.0
    assert len({(word.branch, word.number) for word in run.said if isinstance(word, OnceAsked)}) == 4


def test_a_role_may_call_tools(endpoint: Endpoint) -> None:
    def book(day: str) -> str:
        """Look a day up.

        Args:
            day: The day.
        """
        return f"{day} is free"

    async def plays(chat: Chat) -> float:
        user = chat.role("user", SCENE)
        turn = await user.turn("When?", tools=[book])
        assert turn.tool_calls[0].arguments == {"day": "Monday"}
        turn = await user.turn(*await user.use_tools(turn))
        await chat.turn(turn.text)
        return 1.0

    call = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": '{"day":"Monday"}'}}
    endpoint.answers = [(200, {"content": None, "tool_calls": [call]}), (200, "On Monday.")]
    end, _ = play(plays, roles=player(endpoint))
    assert end.reward == 1.0
    sent = endpoint.asked[1]["messages"]
    assert sent[-1]["content"] == "Monday is free"
    assert sent[-2]["tool_calls"] == [call], "as it came, arguments as JSON"
    assert endpoint.asked[0]["tools"][0]["function"]["name"] == "book"


def test_a_blocking_episode_speaks_to_roles_too(endpoint: Endpoint) -> None:
    def plays(chat: BlockingChat) -> float:
        user = chat.role("user", SCENE)
        turn = chat.turn(user.turn("Hello?").text)
        return float(user.fork().turn(turn.text).text == "bye" and len(user.messages) == 3)

    endpoint.answers = [(200, "hi"), (200, "bye")]
    end, _ = play(plays, roles=player(endpoint))
    assert end.reward == 1.0


def test_a_role_that_fails_is_a_failure_of_the_environment(endpoint: Endpoint) -> None:
    endpoint.answers = [(401, "no such key")]
    end, _ = play(haggle, roles=player(endpoint))
    assert end.reason == "raised"
    assert "the role 'user' at" in end.detail
    assert "answered 401: no such key" in end.detail


def test_a_role_inherits_the_limit_of_the_waiting_episode() -> None:
    class Silent(RolePlayer):
        async def answer(self, *_: Any) -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

    roles = {"user": Silent("user", RoleSettings(url="http://127.0.0.1:9/v1", model="m"))}
    end, _ = play(haggle, roles=roles, limits=EpisodeLimits(start_limit_s=9.0, call_limit_s=0.3))
    assert end.reason == "call limit"


def test_a_role_that_the_recipe_does_not_have_is_named() -> None:
    async def plays(chat: Chat) -> float:
        chat.role("usr")
        return 0.0

    end, _ = play(plays)
    assert "the recipe has no role 'usr'; set roles.usr.url or roles.usr.version" in end.detail


def test_the_key_of_a_role_comes_from_the_environment(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLE_KEY", "s3cret")
    recipe = build(
        Recipe, {"roles": {"user": {"url": endpoint.url, "model": "m", "api_key": "env:ROLE_KEY"}}}, "a test"
    )
    roles = {name: RolePlayer(name, settings) for name, settings in recipe.roles.items()}
    play(haggle, roles=roles)
    assert set(endpoint.keys) == {"Bearer s3cret"}
    monkeypatch.delenv("ROLE_KEY")
    with pytest.raises(UserError, match="role user takes a value from the environment variable ROLE_KEY"):
        RolePlayer("user", recipe.roles["user"])


@pytest.mark.parametrize(("wanted", "reward"), [("cancelled", 1.0), ("processing", 0.0)])
def test_a_help_desk_is_judged_by_what_became_of_the_orders(
    endpoint: Endpoint, wanted: str, reward: float
) -> None:
    support = load_named(f"{Path(__file__).parents[2] / 'examples/support/support.py'}:support")
    orders = {"12345": {"item": "lamp", "status": "processing", "address": "1 Elm Street"}}
    goal = {"12345": orders["12345"] | {"status": wanted}}
    row = Row(row=0, prompt=None, columns={"orders": orders, "goal": goal, "wish": "Cancel 12345."})

    def policy(context: str) -> str:
        return "Done!" if "[tool]cancelled" in context else 'CALL cancel_order {"order": "12345"}'

    endpoint.answers = [(200, "Please cancel 12345."), (200, "Thanks. DONE")]
    end, run = play(support, policy, row=row, roles=player(endpoint))
    assert end.reward == reward
    assert len(run.asked()) == 2
    assert "Cancel 12345." in endpoint.asked[0]["messages"][0]["content"]
    assert endpoint.asked[1]["messages"][-1]["content"] == "Done!"


def test_a_run_remembers_the_role_under_a_number_of_its_own(endpoint: Endpoint) -> None:
    run = ScriptedRun()
    play(haggle, run=run, roles=player(endpoint))
    branches = {branch for branch, _ in run.once}
    assert len(branches) == 1
    assert 0 not in branches, "turns of the policy are numbered as if there were no role"


# --- played by a frozen version ---

FROZEN = {"user": FrozenPlayer("user", RoleSettings(version="initial", max_tokens=7))}


def says(context: str) -> str:
    return ("refund!", "why?", "thanks")[context.count("[assistant]") - 1]


def test_a_version_plays_a_role_and_its_own_words_are_never_rendered_again() -> None:
    end, run = play(haggle, run=ScriptedRun(role=says), roles=FROZEN)
    assert end.reward == 1.0
    assert [each.branch for each in run.asked()] == [0, 0], "the policy was asked for two turns"
    first, second, third = (text(each.tokens) for each in run.roles_asked)
    assert first.startswith("[system]You want a refund.")
    assert second.startswith(f"{first}refund!{STOP}"), "behind the very tokens that it drew"
    assert third.startswith(f"{second}why?{STOP}")
    assert [each.max_tokens for each in run.roles_asked] == [7, 9, 9]
    assert {each.branch for each in run.roles_asked}.isdisjoint({0})


def test_what_a_version_said_in_a_role_is_not_asked_for_again() -> None:
    _, run = play(haggle, run=ScriptedRun(role=says), roles=FROZEN)
    end, _ = play(haggle, run=run, roles=FROZEN)
    assert end.reward == 1.0
    assert len(run.roles_asked) == 3
    assert run.num_drawn == 2


def test_a_crash_in_the_middle_of_a_conversation_goes_on_behind_the_same_tokens() -> None:
    whole = ScriptedRun(role=says)
    play(haggle, run=whole, roles=FROZEN)
    cut = ScriptedRun(role=says)
    play(haggle, run=cut, roles=FROZEN)
    del cut.once[max(cut.once)]
    cut.roles_asked.clear()
    end, _ = play(haggle, run=cut, roles=FROZEN)
    assert end.reward == 1.0
    assert [each.tokens for each in cut.roles_asked] == [whole.roles_asked[-1].tokens]


def test_a_conversation_of_a_role_that_is_full_truncates_the_episode() -> None:
    end, _ = play(haggle, run=ScriptedRun(role=lambda _: "!context"), roles=FROZEN)
    assert end.is_truncated


def test_a_role_that_the_engine_refuses_is_a_failure_of_the_environment() -> None:
    end, _ = play(haggle, run=ScriptedRun(role=lambda _: "!no such token"), roles=FROZEN)
    assert end.reason == "raised"
    assert "the role 'user' said nothing: no such token" in end.detail


def test_a_version_that_plays_a_role_may_call_tools_and_be_forked() -> None:
    def book(day: str) -> str:
        """Look a day up.

        Args:
            day: The day.
        """
        return f"{day} is free"

    def speaks(context: str) -> str:
        return "On Monday." if "is free" in context else 'CALL book {"day": "Monday"}'

    async def plays(chat: Chat) -> float:
        user = chat.role("user", SCENE)
        turn = await user.turn("When?", tools=[book])
        beside = user.fork()
        said = [await each.turn(*await each.use_tools(turn)) for each in (user, beside)]
        await chat.turn(said[0].text)
        return float(said[0].text == said[1].text == "On Monday.")

    end, run = play(plays, run=ScriptedRun(role=speaks), roles=FROZEN)
    assert end.reward == 1.0
    first, second, third = run.roles_asked
    assert second.tokens == third.tokens
    assert second.branch != third.branch, "forks draw from streams of their own"
    assert ids("[tools]book")[:5] == list(first.tokens[:5])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "played behind an endpoint or by a version"),
        ({"url": "http://h/v1", "model": "m", "version": "initial"}, "behind an endpoint or by a version"),
        ({"url": "http://h/v1"}, "needs the name of a model"),
        ({"version": "initial", "api_key": "env:KEY"}, "roles.NAME.api_key is for an endpoint"),
        ({"version": "initial", "options": {"temperature": 1}}, "roles.NAME.options is for an endpoint"),
        ({"url": "http://h/v1", "model": "m", "sampling": {"top_k": 1}}, "sampling is for a version"),
    ],
)
def test_a_role_is_played_in_one_way(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(Recipe, {"roles": {"user": settings}}, "a test")


def test_a_frozen_version_needs_a_schedule_that_keeps_versions() -> None:
    roles = {"user": {"version": "initial"}}
    assert build(Recipe, {"roles": roles}, "a test").frozen_versions == (0,)
    assert build(Recipe, {}, "a test").frozen_versions == ()
    with pytest.raises(ConfigError, match="a frozen version plays a role"):
        build(Recipe, {"roles": roles, "control": {"schedule": "partial"}}, "a test")
