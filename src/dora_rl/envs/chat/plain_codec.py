"""The codec of a model without a chat template: messages are lines of text, without roles.

first message \\n second message <answer> end \\n next message <answer> end
"""

from collections.abc import Sequence
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.envs.chat.chat_tokenizer import ChatTokenizer
from dora_rl.envs.chat.codec import Parsed, ThinkingKept, named_calls
from dora_rl.envs.chat.fitted_messages import fit_messages, without_earlier_thinking
from dora_rl.envs.chat.messages import Message, ToolSchema, plain_messages
from dora_rl.envs.chat.template_traits import TemplateTraits
from dora_rl.envs.chat.thoughts import BranchThinking, split_thinking
from dora_rl.envs.chat.tool_calls import READERS, CallForm


class PlainCodec:
    """Messages as lines of text; a turn ends with the token that ends a text."""

    def __init__(self, tokenizer: ChatTokenizer, thinking: ThinkingKept, form: CallForm) -> None:
        end = tokenizer.special.get("eos_token")
        number = None if end is None else tokenizer.token_id(end)
        if number is None:
            raise UserError(
                "the tokenizer has neither a chat template nor a token that ends a text",
                hint="name one as eos_token in tokenizer_config.json",
            )
        self._tokenizer, self._end, self._form = tokenizer, number, form
        self._strips, self._thinking = thinking == "strip", BranchThinking(tokenizer)
        self._traits = TemplateTraits(
            stop=end or "",
            opens_thinking=False,
            writes_thinking=False,
            writes_tools=False,
            writes_calls=False,
            writes_results=True,
            call_form=form,
        )

    @property
    def stop_ids(self) -> frozenset[int]:
        """The token that ends a text."""
        return frozenset((self._end,))

    def begin(self, messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """All messages as lines."""
        plain = plain_messages(messages)
        if self._strips:
            plain = without_earlier_thinking(plain)
        fitted = fit_messages(plain, tools, self._traits)
        if not fitted:
            raise UserError("a chat begins with no message", hint="give the first turn a message")
        ids = self._tokenizer.encode_opening(fitted[0]["content"])
        for message in fitted[1:]:
            ids += self._line(message)
        # A chat that ends with the assistant's words is to be continued, not answered.
        return ids[:-1] if len(fitted) > 1 and fitted[-1]["role"] == "assistant" else ids

    def extend(
        self, ids: Sequence[int], messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()
    ) -> list[int] | None:
        """New lines behind a sampled turn; None where a user's message takes thinking out of the past."""
        new = fit_messages(plain_messages(messages), (), self._traits)
        has_user = any(each["role"] == "user" for each in new)
        if self._strips and has_user and self._thinking.is_in(ids):
            return None
        bridge = [] if ids and ids[-1] == self._end else [self._end]
        for message in new:
            bridge += self._line(message)
        return bridge

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSchema] = ()) -> Parsed:
        """What a model said with the tokens of one turn; never an error."""
        thinking, text = split_thinking(self._tokenizer.said(ids), is_open=False)
        text, calls = READERS[self._form](text)
        return Parsed(text=text, thinking=thinking, tool_calls=named_calls(calls, ids))

    def _line(self, message: dict[str, Any]) -> list[int]:
        """A message behind others: an answer with its end, anything else on a line of its own."""
        if message["role"] == "assistant":
            return [*self._tokenizer.encode(message["content"]), self._end]
        return self._tokenizer.encode(f"\n{message['content']}")
