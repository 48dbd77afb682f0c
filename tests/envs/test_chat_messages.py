"""Messages in one form, tool calls however a model writes them, functions as tools."""

import json
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.errors import UserError
from dora_rl.envs.chat.messages import match_key, plain_message
from dora_rl.envs.chat.tool_calls import read_hermes, read_llama_json, write_hermes, write_llama_json
from dora_rl.envs.chat.tool_schema import tool_schema

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=8), JSON, max_size=4)


def calling(arguments: Any, **keys: Any) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]} | keys


# Echoes


@given(arguments=ARGUMENTS)
def test_a_message_that_a_client_echoes_differently_is_the_same(arguments: dict[str, Any]) -> None:
    said = match_key(calling(arguments))
    turned = dict(reversed(arguments.items()))
    echoes = [
        calling(json.dumps(arguments, indent=2)),
        calling(json.dumps(turned, separators=(",", ":")), content=""),
        calling(turned, refusal=None, annotations=[], audio=None, reasoning_content="Hm."),
        calling(arguments) | {"tool_calls": [{**calling(arguments)["tool_calls"][0], "id": "b", "index": 0}]},
    ]
    assert {match_key(echo) for echo in echoes} == {said}


@pytest.mark.parametrize(
    "other",
    [
        calling({"where": "there"}),
        calling({"where": "here"}, content="So."),
        calling({"where": "here"}, tool_calls=None),
        calling({"where": "here"}, role="user", tool_calls=None),
    ],
)
def test_a_message_that_says_something_else_is_another(other: dict[str, Any]) -> None:
    assert match_key(other) != match_key(calling({"where": "here"}))


def test_parts_of_text_are_text_and_other_parts_are_refused() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}]
    assert match_key({"role": "user", "content": parts}) == match_key({"role": "user", "content": "ab"})
    with pytest.raises(UserError, match="part of type 'image_url'"):
        plain_message({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})


@pytest.mark.parametrize(("role", "plain"), [("developer", "system"), ("function", "tool"), ("user", "user")])
def test_roles_of_the_same_meaning_are_one(role: str, plain: str) -> None:
    assert plain_message({"role": role, "content": "x"})["role"] == plain


def test_a_role_that_no_chat_knows_is_refused() -> None:
    with pytest.raises(UserError, match="role 'robot'"):
        plain_message({"role": "robot", "content": "x"})


def test_no_key_is_rendered_without_a_value() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [], "reasoning_content": None}
    assert plain_message(message) == {"role": "assistant", "content": ""}


# Calls


@given(arguments=ARGUMENTS, name=st.text(min_size=1), before=st.text(st.characters(exclude_characters="<")))
def test_a_written_call_is_read_as_it_was(arguments: dict[str, Any], name: str, before: str) -> None:
    text = write_hermes(name, arguments)
    if "tool_call>" in json.dumps([name, arguments]):
        return
    said, (call,) = read_hermes(before + text)
    assert (call.name, call.arguments, call.problem) == (name, arguments, None)
    assert said == before.strip()
    _, (call,) = read_llama_json(write_llama_json(name, arguments))
    assert (call.name, call.arguments, call.problem) == (name, arguments, None)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("{'name': 'look'}", "not valid JSON"),
        ('{"arguments": {}}', 'not a JSON object with a "name"'),
        ('["look"]', 'not a JSON object with a "name"'),
        ('{"name": "look", "arguments": [1]}', "arguments of look are no JSON object"),
        ('{"name": "look", "arguments": "here"}', "arguments of look are text"),
        ('{"name": "look", "arguments": {"x": NaN}}', "not valid JSON"),
        ('{"name": "look", "arguments": {"x": "\\ud800"}}', "half of a character"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_malformed_call_is_a_sentence_and_stays_in_the_text(body: str, problem: str) -> None:
    text = f"So: <tool_call>{body}</tool_call>"
    said, (call,) = read_hermes(text)
    assert said == text
    assert call.problem is not None
    assert problem in call.problem
    assert call.problem.endswith(".")


def test_one_bad_call_does_not_hide_a_good_one() -> None:
    said, calls = read_hermes('<tool_call>{</tool_call><tool_call>{"name": "look"}</tool_call>')
    assert [call.problem is None for call in calls] == [False, True]
    assert said == "<tool_call>{</tool_call>"


def test_a_call_that_was_cut_is_a_problem() -> None:
    said, (call,) = read_hermes('<tool_call>{"name": "look"')
    assert call.problem == "The call does not end with </tool_call>."
    assert said == '<tool_call>{"name": "look"'


@pytest.mark.parametrize("text", ["", "Nothing.", '{"a": 1}', "{not JSON}", "[1, 2]", "{"])
def test_text_that_is_no_call_is_text(text: str) -> None:
    assert read_llama_json(text) == (text, [])
    assert read_hermes(text) == (text, [])


def test_llama_may_make_several_calls() -> None:
    two = '{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}'
    assert [call.name for call in read_llama_json(two)[1]] == ["a", "b"]
    assert [call.name for call in read_llama_json(f"[{two.replace(';', ',')}]")[1]] == ["a", "b"]


@given(text=st.text(st.sampled_from('{}[]"<tool_call>/name:,\\ud8 \n;1')))
def test_reading_never_fails(text: str) -> None:
    read_hermes(text)
    read_llama_json(text)


# Functions as tools


class Colour(Enum):
    RED = 1


def find(
    what: str,
    where: Literal["here", "there"],
    count: int = 1,
    exact: bool | None = None,
    tags: list[str] = [],  # noqa: B006
) -> dict[str, Any]:
    """Find a thing.

    It may be anywhere.

    Args:
        what: The thing to look for,
            in words.
        where: The place.
        count: How many (choices: ["1", "2"])
        exact: Whether the words
            must match.
        tags: More words.

    Returns:
        What was found.
    """
    raise NotImplementedError


class Drawer:
    def take(self, index: int, point: tuple[int, float], either: int | str, any_of: list[int] | str) -> float:
        """Take something out of the drawer.

        Args:
            index: Its number.
            point: Two numbers.
            either: A number or a word.
            any_of: Numbers or a word.
        """
        raise NotImplementedError


def test_a_function_is_the_tool_that_transformers_makes_of_it() -> None:
    from transformers.utils import get_json_schema

    for function in (find, Drawer().take, Drawer.take):
        assert tool_schema(function) == get_json_schema(function)


def test_arguments_need_no_description() -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    parameters = tool_schema(add)["function"]["parameters"]
    assert parameters["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
    assert parameters["required"] == ["a", "b"]


def test_a_tool_that_a_model_could_not_call_is_refused() -> None:
    def untyped(a) -> None:  # type: ignore[no-untyped-def]
        """Do it."""

    def undocumented(a: int) -> None: ...

    def variadic(*a: int) -> None:
        """Do it."""

    with pytest.raises(UserError, match="argument a of the tool untyped has no type"):
        tool_schema(untyped)
    with pytest.raises(UserError, match="undocumented has no docstring"):
        tool_schema(undocumented)
    with pytest.raises(UserError, match="cannot be given by name"):
        tool_schema(variadic)
