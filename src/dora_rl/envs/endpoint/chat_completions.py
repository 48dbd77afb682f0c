"""OpenAI's chat completions: requests read, answers written, whole and in pieces."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dora_rl.envs.chat.tool_calls import ToolCall
from dora_rl.envs.endpoint import fields as read
from dora_rl.envs.endpoint.answerer import TurnAnswer
from dora_rl.envs.endpoint.endpoint_error import EndpointError
from dora_rl.envs.endpoint.fields import Call
from dora_rl.envs.endpoint.turn_request import TurnRequest

_USED = ("messages", "max_tokens", "max_completion_tokens", "response_format")
_REFUSED = {
    "logit_bias": "tokens are drawn as the model has them",
    "logprobs": "they are recorded with the trajectory",
    "top_logprobs": "at most the logprobs of what was drawn are",
    "functions": "give 'tools'",
    "function_call": "give 'tools'",
    "audio": "answers are text",
    "modalities": "answers are text",
    "prediction": "nothing is predicted",
    "web_search_options": "only functions that the client calls are tools",
}
_PIECE = 64
"""Characters of a piece in a stream; a turn is there as a whole before its first piece is sent."""


class ChatCompletions:
    """Requests to `chat/completions`, and what they are answered with."""

    def __init__(self, *, gives_logprobs: bool = False) -> None:
        """Whether clients may have the logprobs of what was drawn."""
        self._used = (*_USED, "logprobs") if gives_logprobs else _USED
        self._refused = {name: why for name, why in _REFUSED.items() if name not in self._used}

    def read(self, body: Mapping[str, Any]) -> Call:
        """A request from its body; raises EndpointError."""
        found = read.given(body, used=self._used, refused=self._refused)
        read.texts_only(found, "response_format")
        messages = found.get("messages")
        if not isinstance(messages, list) or not messages:
            raise EndpointError("'messages' is a list with at least one message", field="messages")
        limits = [read.number(found, name) for name in ("max_completion_tokens", "max_tokens")]
        options = found.get("stream_options")
        return Call(
            asked=TurnRequest(
                tuple(messages),
                tools=read.tools(found),
                max_tokens=min((limit for limit in limits if limit is not None), default=None),
                stop=read.stops(found),
                num_answers=read.num_answers(found),
                sampling=read.sampling(found),
                wants_logprobs=found.get("logprobs") is True,
            ),
            model=str(found.get("model", "")),
            is_streamed=found.get("stream") is True,
            includes_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
            hints=read.hints(found),
            body=found,
        )

    def whole(self, call: Call, answers: Sequence[TurnAnswer]) -> dict[str, Any]:
        """The response to a request that is not streamed."""
        choices = [
            {
                "index": index,
                "message": _message(answer),
                "logprobs": _logprobs(answer),
                "finish_reason": _finish(answer),
            }
            for index, answer in enumerate(answers)
        ]
        return _envelope("chat.completion", answers[0].model or call.model) | {
            "choices": choices,
            "usage": _usage(answers),
        }

    def events(self, call: Call, answers: Sequence[TurnAnswer]) -> Iterator[bytes]:
        """The same as server-sent events."""
        head = _envelope("chat.completion.chunk", answers[0].model or call.model)
        for index, answer in enumerate(answers):
            for delta in _deltas(answer):
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                yield _event(head | {"choices": [choice]})
            # A piece is of characters, not of tokens: the logprobs come with the end.
            end = {"index": index, "delta": {}, "logprobs": _logprobs(answer)}
            yield _event(head | {"choices": [end | {"finish_reason": _finish(answer)}]})
        if call.includes_usage:
            yield _event(head | {"choices": [], "usage": _usage(answers)})
        yield b"data: [DONE]\n\n"


def pieces(text: str) -> Iterator[str]:
    """A text in pieces, in order."""
    for begin in range(0, len(text), _PIECE):
        yield text[begin : begin + _PIECE]


def arguments(call: ToolCall) -> str:
    """The arguments of a call as the JSON text that clients read."""
    return msgspec.json.encode(call.arguments).decode()


def calls(answer: TurnAnswer) -> list[ToolCall]:
    """The calls that a client can carry out; one that cannot be read is in the text."""
    return [call for call in answer.turn.tool_calls if call.problem is None]


def _envelope(kind: str, model: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def _message(answer: TurnAnswer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.turn.thinking:
        message["reasoning_content"] = answer.turn.thinking
    if called := calls(answer):
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments(call)},
            }
            for call in called
        ]
    return message


def _deltas(answer: TurnAnswer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in pieces(answer.turn.thinking):
        yield {"reasoning_content": piece}
    for piece in pieces(answer.text):
        yield {"content": piece}
    for index, call in enumerate(calls(answer)):
        function: dict[str, Any] = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
        for piece in pieces(arguments(call)):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _logprobs(answer: TurnAnswer) -> dict[str, Any] | None:
    if answer.logprobs is None:
        return None
    content = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in answer.logprobs
    ]
    return {"content": content, "refusal": None}


def _finish(answer: TurnAnswer) -> str:
    if answer.turn.finish == "length":
        return "length"
    return "tool_calls" if calls(answer) else "stop"


def _usage(answers: Sequence[TurnAnswer]) -> dict[str, int]:
    prompt = answers[0].num_prompt_tokens
    drawn = sum(len(answer.turn.tokens) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
