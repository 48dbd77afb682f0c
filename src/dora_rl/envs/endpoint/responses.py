"""OpenAI's responses: requests read, answers written, whole and in pieces."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dora_rl.envs.chat.messages import Message
from dora_rl.envs.endpoint import fields as read
from dora_rl.envs.endpoint.answerer import TurnAnswer
from dora_rl.envs.endpoint.chat_completions import arguments, calls, pieces
from dora_rl.envs.endpoint.endpoint_error import EndpointError
from dora_rl.envs.endpoint.fields import Call
from dora_rl.envs.endpoint.turn_request import TurnRequest

_USED = ("input", "instructions", "max_output_tokens", "text")
_REFUSED = {
    "previous_response_id": "nothing is kept between requests; send the whole conversation as 'input'",
    "conversation": "nothing is kept between requests; send the whole conversation as 'input'",
    "background": "an answer is awaited",
    "prompt": "there are no stored prompts",
    "top_logprobs": "chat/completions has 'logprobs'",
    "n": "ask several times",
    "stop": "chat/completions has it",
    "response_format": "it is chat/completions' field",
    "logit_bias": "tokens are drawn as the model has them",
}
_ECHOED = ("instructions", "max_output_tokens", "metadata", "temperature", "top_p", "user")

Item = dict[str, Any]


class Responses:
    """Requests to `responses`, and what they are answered with."""

    def read(self, body: Mapping[str, Any]) -> Call:
        """A request from its body; raises EndpointError."""
        found = read.given(body, used=_USED, refused=_REFUSED)
        read.texts_only(found, "text")
        messages: list[Message] = []
        if instructions := found.get("instructions"):
            messages.append({"role": "system", "content": instructions})
        messages += _messages(found.get("input"))
        return Call(
            asked=TurnRequest(
                tuple(messages),
                tools=read.tools(found),
                max_tokens=read.number(found, "max_output_tokens"),
                sampling=read.sampling(found),
            ),
            model=str(found.get("model", "")),
            is_streamed=found.get("stream") is True,
            includes_usage=True,
            hints=read.hints(found),
            body=found,
        )

    def whole(self, call: Call, answers: Sequence[TurnAnswer]) -> dict[str, Any]:
        """The response to a request that is not streamed."""
        return _ended(_begun(call, answers[0]), answers[0])

    def events(self, call: Call, answers: Sequence[TurnAnswer]) -> Iterator[bytes]:
        """The same as server-sent events."""
        begun = _begun(call, answers[0])
        ended = _ended(begun, answers[0])
        for number, event in enumerate(_events(begun, ended)):
            data = msgspec.json.encode(event | {"sequence_number": number})
            yield b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n"


# --- read ---------------------------------------------------------------------------------------


def _messages(given: Any) -> list[Message]:
    """The conversation in the form of chat completions; calls are part of the message before them."""
    if isinstance(given, str) and given:
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise EndpointError("'input' is a text or a list with at least one item", field="input")
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(given):
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        match kind:
            case "message":
                messages.append({"role": item.get("role"), "content": item.get("content")})
            case "function_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                messages[-1].setdefault("tool_calls", []).append(
                    {
                        "id": item.get("call_id"),
                        "type": "function",
                        "function": {"name": item.get("name"), "arguments": item.get("arguments")},
                    }
                )
            case "function_call_output":
                called = {"tool_call_id": item.get("call_id"), "content": item.get("output")}
                messages.append({"role": "tool", **called})
            case "reasoning":
                pass  # What was thought stands in the tokens of the branch.
            case _:
                raise EndpointError(
                    f"item {number} of 'input' is of type {kind!r}, which is not had here: messages, "
                    "function calls and their outputs are",
                    field="input",
                    code="unsupported",
                )
    return list(messages)


# --- written ------------------------------------------------------------------------------------


def _begun(call: Call, answer: TurnAnswer) -> Item:
    body = call.body
    return {
        "id": _name("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": answer.model or call.model,
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools", []),
        "text": {"format": {"type": "text"}},
        "usage": None,
        **{name: body.get(name) for name in _ECHOED},
    }


def _ended(begun: Item, answer: TurnAnswer) -> Item:
    is_cut = answer.turn.finish == "length"
    status = "incomplete" if is_cut else "completed"
    drawn = len(answer.turn.tokens)
    return begun | {
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": list(_items(answer, status)),
        "usage": {
            "input_tokens": answer.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": drawn,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.num_prompt_tokens + drawn,
        },
    }


def _items(answer: TurnAnswer, status: str) -> Iterator[Item]:
    if answer.turn.thinking:
        content = [{"type": "reasoning_text", "text": answer.turn.thinking}]
        yield {"type": "reasoning", "id": _name("rs"), "summary": [], "content": content}
    called = calls(answer)
    if answer.text or not called:
        yield {
            "type": "message",
            "id": _name("msg"),
            "role": "assistant",
            "status": status,
            "content": [_part(answer.text)],
        }
    for call in called:
        yield {
            "type": "function_call",
            "id": _name("fc"),
            "call_id": call.id,
            "name": call.name,
            "arguments": arguments(call),
            "status": "completed",
        }


def _part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _events(begun: Item, ended: Item) -> Iterator[Item]:
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(ended["output"]):
        place = {"output_index": index}
        bare = {"message": {"content": []}, "function_call": {"arguments": ""}, "reasoning": {"content": []}}
        added = item | bare[item["type"]] | ({"status": "in_progress"} if "status" in item else {})
        yield {"type": "response.output_item.added", **place, "item": added}
        yield from _item_events(item, place | {"item_id": item["id"]})
        yield {"type": "response.output_item.done", **place, "item": item}
    yield {"type": f"response.{ended['status']}", "response": ended}


def _item_events(item: Item, place: Item) -> Iterator[Item]:
    """The pieces of one item of the output."""
    if item["type"] == "function_call":
        kind = "response.function_call_arguments"
        for piece in pieces(item["arguments"]):
            yield {"type": f"{kind}.delta", **place, "delta": piece}
        yield {"type": f"{kind}.done", **place, "name": item["name"], "arguments": item["arguments"]}
        return
    place = place | {"content_index": 0}
    part = item["content"][0]
    if item["type"] == "reasoning":
        for piece in pieces(part["text"]):
            yield {"type": "response.reasoning_text.delta", **place, "delta": piece}
        yield {"type": "response.reasoning_text.done", **place, "text": part["text"]}
        return
    yield {"type": "response.content_part.added", **place, "part": _part("")}
    for piece in pieces(part["text"]):
        yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}


def _name(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"
