"""What a chat template does, seen by rendering a few small chats at start.

Templates are programs: only what they write shows which token ends a turn, whether they know tools, calls and
thinking, and whether a chat can grow without its earlier part being written differently.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dora_rl.core.errors import UserError, install_hint
from dora_rl.core.record import Record
from dora_rl.envs.chat.chat_template import TURN, ChatTemplate
from dora_rl.envs.chat.chat_tokenizer import ChatTokenizer
from dora_rl.envs.chat.messages import ToolSchema
from dora_rl.envs.chat.thoughts import is_thinking_open, without_blank_thinking
from dora_rl.envs.chat.tool_calls import READERS, CallForm

_OTHER = "another-turn-that-was-sampled"
_MARK = "a-mark-to-look-for"
_HINT = "write a chat_template.jinja that only ever appends, and put it beside tokenizer.json"
_ASK = {"role": "user", "content": "Ask."}
_TOOL = {
    "type": "function",
    "function": {
        "name": _MARK,
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
    },
}


class TemplateTraits(Record, frozen=True):
    """What a chat template was seen to do."""

    stop: str
    """The token behind an assistant's message."""
    opens_thinking: bool
    """Whether the model's answer begins inside thinking that the template opened."""
    writes_thinking: bool
    writes_tools: bool
    writes_calls: bool
    writes_results: bool
    """Whether the role `tool` is known."""
    call_form: CallForm | None
    """How it writes calls; None if in a form that is not known here."""
    tools_problem: str | None = None
    """Why there can be no tools with this template, as a sentence."""


def a_turn(said: str = TURN) -> dict[str, Any]:
    """An assistant's message that stands for a sampled turn."""
    return {"role": "assistant", "content": said}


def a_calling_turn(said: str = TURN, call: str = "callprobe") -> dict[str, Any]:
    """An assistant's message with a call that stands for a sampled turn."""
    function = {"name": said, "arguments": {"where": "here"}}
    return a_turn(said) | {"tool_calls": [{"id": call, "type": "function", "function": function}]}


def behind_turn(text: str, stop: str, said: str = TURN) -> int | None:
    """Where in a rendering a sampled turn is over: behind the token that ends it; None if it is not there."""
    begin = text.find(said)
    end = text.find(stop, begin) if begin >= 0 else -1
    return None if end < 0 else end + len(stop)


def probe_template(template: ChatTemplate, tokenizer: ChatTokenizer) -> TemplateTraits:
    """Render small chats and see; a UserError where the template cannot be extended behind sampled tokens."""
    asked = template.render([_ASK], (), is_answer_next=True)
    traits = TemplateTraits(
        stop=_stop_token(template, tokenizer),
        opens_thinking=is_thinking_open(asked),
        writes_thinking=_shows(template, [_ASK, a_turn() | {"reasoning_content": _MARK}]),
        writes_tools=_shows(template, [_ASK], [_TOOL]),
        writes_calls=_shows(template, [_ASK, a_calling_turn(_MARK) | {"content": ""}]),
        writes_results=_shows(template, [_ASK, a_calling_turn(), _result(_MARK)]),
        call_form="hermes",
    )
    _check_answer(template, asked)
    problem = _prefix_problem(template, traits.stop, [_ASK, a_turn()], [_ASK])
    problem = problem or _prefix_problem(
        template, traits.stop, [_ASK, a_turn(), _ASK, a_turn(_OTHER)], [_ASK]
    )
    if problem:
        raise UserError(problem, hint=_HINT)
    _check_tokens(template, tokenizer, traits.stop)
    if traits.writes_calls:
        traits = msgspec.structs.replace(traits, call_form=_call_form(template, traits.stop, asked))
    return msgspec.structs.replace(traits, tools_problem=_tools_problem(template, traits))


def _shows(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSchema] = ()
) -> bool:
    """Whether the mark in a chat is in its rendering; a template that refuses the chat does not show it."""
    try:
        return _MARK in template.render(messages, tools, is_answer_next=False)
    except UserError:
        return False


def _result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "callprobe", "name": TURN}


def _stop_token(template: ChatTemplate, tokenizer: ChatTokenizer) -> str:
    """The token behind an assistant's message: found in the text that follows one."""
    text = template.render([_ASK, a_turn()], (), is_answer_next=False)
    begin = text.find(TURN)
    if begin < 0:
        raise UserError("the chat template leaves out what the assistant said", hint=_HINT)
    rest = text[begin + len(TURN) :].lstrip()
    found = max(
        (token for token in tokenizer.added if token and rest.startswith(token)), key=len, default=None
    )
    if found is None:
        raise UserError(
            f"the chat template ends an assistant's message with {rest[:20]!r}, which is no token, "
            "so nothing can be appended behind a sampled turn",
            hint=f"{_HINT}, or {install_hint('agents')} for more models",
        )
    return found


def _check_answer(template: ChatTemplate, asked: str) -> None:
    """What the model is given to answer must be what stands before an answer later on."""
    told = template.render([_ASK, a_turn()], (), is_answer_next=False)
    before, after = without_blank_thinking(asked), without_blank_thinking(told[: told.find(TURN)])
    if before != after:
        raise UserError(f"the chat template {_difference(before, after)} once there is an answer", hint=_HINT)


def _prefix_problem(
    template: ChatTemplate,
    stop: str,
    first: list[dict[str, Any]],
    more: list[dict[str, Any]],
    tools: Sequence[ToolSchema] = (),
) -> str | None:
    """Why a chat whose last turn was sampled cannot grow by these messages; None if it can.

    Empty blocks of thinking do not count: some templates write them around the last answer only.
    """
    said = first[-1]["content"]
    short = template.render(first, tools, is_answer_next=False)
    long = template.render([*first, *more], tools, is_answer_next=True)
    ends = behind_turn(short, stop, said), behind_turn(long, stop, said)
    role = more[0]["role"]
    if ends[0] is None or ends[1] is None:
        return f"the chat template leaves out a turn of the assistant once a message by {role} follows"
    before, after = without_blank_thinking(short[: ends[0]]), without_blank_thinking(long[: ends[1]])
    if before == after:
        return None
    return f"the chat template {_difference(before, after)} once a message by {role} follows"


def _check_tokens(template: ChatTemplate, tokenizer: ChatTokenizer, stop: str) -> None:
    """What is appended must have the ids it has in the whole."""
    text = template.render([_ASK, a_turn(), _ASK], (), is_answer_next=True)
    end = behind_turn(text, stop)
    assert end is not None, "the same chat was rendered before"
    appended = tokenizer.encode(stop + text[end:])
    if tokenizer.encode(text) != tokenizer.encode(text[: end - len(stop)]) + appended:
        raise UserError(
            f"text behind {stop!r} has other tokens than the same text in a whole chat",
            hint="use a tokenizer that cuts a text at its special tokens first",
        )


def _call_form(template: ChatTemplate, stop: str, asked: str) -> CallForm | None:
    """The form in which a template writes calls: the one whose reader finds the call in it."""
    call = a_calling_turn(_MARK) | {"content": ""}
    text = template.render([_ASK, call], (), is_answer_next=False)
    end = behind_turn(text, stop, _MARK)
    if end is None:
        return None
    said = without_blank_thinking(text)[len(without_blank_thinking(asked)) :].partition(stop)[0]
    for form, read in READERS.items():
        _, calls = read(said)
        if [(each.name, each.arguments) for each in calls] == [(_MARK, {"where": "here"})]:
            return form
    return None


def _tools_problem(template: ChatTemplate, traits: TemplateTraits) -> str | None:
    if traits.call_form is None:
        return "the chat template writes tool calls in a form that is not known here"
    problem = _prefix_problem(template, traits.stop, [_ASK, a_turn()], [_ASK], [_TOOL])
    if problem:
        return f"with tools, {problem}"
    if traits.writes_results:
        return _prefix_problem(template, traits.stop, [_ASK, a_calling_turn()], [_result("Seen.")])
    return None


def _difference(before: str, after: str) -> str:
    """How a text came to differ, shown from just before the first difference."""
    at = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
    at = min(len(before), len(after)) if at is None else at
    begin = max(0, at - 10)
    return f"writes {after[begin : at + 20]!r} where {before[begin : at + 20]!r} stood"
