"""The codec of a model family that the package `renderers` knows, where that is installed.

It knows many forms of tool calls by their tokens. A renderer is used only if it writes, on a few small chats,
exactly what the model's own chat template writes: families share tokens, and templates are changed.
"""

import importlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.envs.chat.chat_template import ChatTemplate
from dora_rl.envs.chat.chat_tokenizer import ChatTokenizer
from dora_rl.envs.chat.codec import Parsed, ThinkingKept, named_calls
from dora_rl.envs.chat.fitted_messages import without_earlier_thinking
from dora_rl.envs.chat.messages import Message, ToolSchema, plain_messages
from dora_rl.envs.chat.thoughts import BranchThinking
from dora_rl.envs.chat.tool_calls import ToolCall

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "qwen3": ("<|im_start|>", "<tool_call>", "</think>"),
    "qwen3.5": ("<|im_start|>", "<tool_call>", "</think>"),
    "llama-3": ("<|start_header_id|>", "<|eom_id|>"),
    "glm-4.5": ("[gMASK]", "<|observation|>"),
    "glm-5": ("[gMASK]", "<|observation|>"),
    "deepseek-v3": ("<｜tool▁calls▁begin｜>",),
    "kimi-k2": ("<|tool_calls_section_begin|>",),
    "minimax-m2": ("]~b]",),
}
"""Families of `renderers`, and tokens without which a tokenizer is of none of them."""

_PROBLEMS = {
    "invalid_json": "The call is not valid JSON.",
    "unclosed_block": "The call does not end.",
    "missing_name": "The call has no name.",
    "malformed_structure": "The call is not in the form of a tool call.",
    "unknown_tool": "There is no tool of that name.",
}
_ASK: Message = {"role": "user", "content": "Where is it?"}
_CALLS: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "callprobe",
            "type": "function",
            "function": {"name": "look", "arguments": {"where": "there"}},
        }
    ],
}
_SEEN: Message = {"role": "tool", "content": "Seen.", "tool_call_id": "callprobe", "name": "look"}
_TOOLS: list[ToolSchema] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Looks.",
            "parameters": {
                "type": "object",
                "properties": {"where": {"type": "string", "description": "The place."}},
                "required": ["where"],
            },
        },
    }
]


class RendererTokenizer:
    """A tokenizer with the names under which renderers call it."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self.name_or_path = ""
        self.unk_token_id = self._special("unk_token")
        self.eos_token_id = self._special("eos_token")

    def encode(self, text: str, **options: Any) -> list[int]:
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Any, **options: Any) -> str:
        return self._tokenizer.decode([token_ids] if isinstance(token_ids, int) else token_ids)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            number = self._tokenizer.token_id(tokens)
            return self.unk_token_id if number is None else number
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def _special(self, name: str) -> int | None:
        token = self._tokenizer.special.get(name)
        return None if token is None else self._tokenizer.token_id(token)


class RendererCodec:
    """Chats begun by the chat template, and grown and read by a renderer that agrees with it."""

    def __init__(
        self, renderer: Any, tokenizer: ChatTokenizer, template: ChatTemplate, thinking: ThinkingKept
    ) -> None:
        self._renderer, self._tokenizer, self._template = renderer, tokenizer, template
        self._strips, self._thinking = thinking == "strip", BranchThinking(tokenizer)
        asked = renderer.render_ids([_ASK], add_generation_prompt=True)
        self._answer = asked[len(renderer.render_ids([_ASK])) :]
        """The ids that ask the model to answer."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens with which a turn of the family ends."""
        return frozenset(self._renderer.get_stop_token_ids())

    def begin(self, messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """The whole context of a new branch, up to where the model answers."""
        plain = plain_messages(messages)
        if not plain:
            raise UserError("a chat begins with no message", hint="give the first turn a message")
        if self._strips:
            plain = without_earlier_thinking(plain)
        return self._tokenizer.encode(self._template.up_to_answer(plain, tools))

    def extend(
        self, ids: Sequence[int], messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()
    ) -> list[int] | None:
        """What is appended behind a sampled turn; None where the renderer finds no way to."""
        plain = plain_messages(messages)
        if self._strips and any(each["role"] == "user" for each in plain) and self._thinking.is_in(ids):
            return None
        asked, sampled = self._last_turn(ids)
        if not asked:
            return None
        bridged = self._renderer.bridge_to_next_turn(asked, sampled, plain, tools=list(tools) or None)
        known = asked + sampled
        if bridged is None or bridged.token_ids[: len(known)] != known:
            return None
        appended: list[int] = bridged.token_ids[len(known) :]
        return appended

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSchema] = ()) -> Parsed:
        """What a model said with the tokens of one turn; never an error."""
        try:
            read = self._renderer.parse_response(
                list(ids), prompt_ids=self._answer, tools=list(tools) or None
            )
            calls = [_call_of(each, is_typed=bool(tools)) for each in read.tool_calls]
        except Exception:  # another's parser, on whatever a model may sample: what it cannot read is text
            return Parsed(text=self._tokenizer.said(ids))
        unread = [each.raw for each, call in zip(read.tool_calls, calls, strict=True) if call.problem]
        text = "\n".join(part for part in (read.content or "", *unread) if part)
        thinking = (read.reasoning_content or "").strip("\n")
        return Parsed(text=text, thinking=thinking, tool_calls=named_calls(calls, ids))

    def _last_turn(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """What asked for the last turn, and the turn: found from the end, whatever came before."""
        size = len(self._answer)
        for begin in range(len(ids) - size, -1, -1):
            if list(ids[begin : begin + size]) == self._answer:
                return list(ids[begin : begin + size]), list(ids[begin + size :])
        return [], []


def find_renderer_codec(
    tokenizer: ChatTokenizer,
    template: ChatTemplate,
    thinking: ThinkingKept,
    options: Mapping[str, Any],
) -> RendererCodec | None:
    """The codec of the first family whose renderer agrees with the template; None if there is none."""
    families = [
        family for family, tokens in FAMILIES.items() if all(token in tokenizer.added for token in tokens)
    ]
    if not families or find_spec("renderers") is None:
        return None
    for family in families:
        codec = _try_family(family, tokenizer, template, thinking, options)
        if codec is not None:
            return codec
    return None


def _try_family(
    family: str,
    tokenizer: ChatTokenizer,
    template: ChatTemplate,
    thinking: ThinkingKept,
    options: Mapping[str, Any],
) -> RendererCodec | None:
    renderers = importlib.import_module("renderers")
    try:
        # All thinking stays as far as the renderer is concerned: what strips it is decided here.
        config = type(renderers.config_from_name(family))(thinking_retention="all")
        renderer = renderers.create_renderer(
            RendererTokenizer(tokenizer), config, chat_template_kwargs=dict(options)
        )
        codec = RendererCodec(renderer, tokenizer, template, thinking)
        return codec if _agrees(codec, renderer, tokenizer, template) else None
    except Exception:  # another family's renderer on this tokenizer: whatever it raises, it is not for it
        return None


def _agrees(codec: RendererCodec, renderer: Any, tokenizer: ChatTokenizer, template: ChatTemplate) -> bool:
    """Whether renderer and template write the same, and the call the template writes is read as it was."""
    chats: list[list[Message]] = [
        [_ASK],
        [{"role": "system", "content": "Be brief."}, _ASK, {"role": "assistant", "content": "There."}, _ASK],
        [_ASK, _CALLS, _SEEN],
    ]
    for chat in chats:
        for tools in ([], _TOOLS):
            text = template.render(chat, tools, is_answer_next=True)
            rendered = renderer.render_ids(chat, tools=tools or None, add_generation_prompt=True)
            if rendered != tokenizer.encode(text):
                return False
    begun, whole = codec.begin([_ASK], _TOOLS), codec.begin([_ASK, _CALLS, _SEEN], _TOOLS)
    rest = whole[len(begun) :]
    ends = [place for place, token in enumerate(rest) if token in codec.stop_ids]
    if whole[: len(begun)] != begun or not ends:
        return False
    sampled, appended = rest[: ends[0] + 1], rest[ends[0] + 1 :]
    calls = [(call.name, call.arguments) for call in codec.parse(sampled, _TOOLS).tool_calls]
    return (
        calls == [("look", {"where": "there"})] and codec.extend(begun + sampled, [_SEEN], _TOOLS) == appended
    )


def _call_of(read: Any, *, is_typed: bool) -> ToolCall:
    # Without schemas a family that writes texts without quotes has none that are valid, and still says all.
    is_whole = read.status.value == "ok" or (not is_typed and read.status.value == "invalid_json")
    if not is_whole or not read.name or not isinstance(read.arguments, dict):
        return ToolCall(problem=_PROBLEMS.get(read.status.value, "The arguments are no JSON object."))
    return ToolCall(name=read.name, arguments=read.arguments)
