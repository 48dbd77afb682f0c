"""The codec of a model with a chat template.

A chat is grown by rendering a small one: a question, a turn that stands for the sampled one, and the new
messages. What follows the turn's stop token is what is appended. So the price of a turn is that of its
messages, however long the chat is, and nothing that was sampled is rendered.
"""

from collections.abc import Sequence
from typing import Any

from dora_rl.core.errors import UserError, install_hint
from dora_rl.envs.chat.chat_template import ChatTemplate
from dora_rl.envs.chat.chat_tokenizer import ChatTokenizer
from dora_rl.envs.chat.codec import Parsed, ThinkingKept, named_calls
from dora_rl.envs.chat.fitted_messages import fit_messages, without_earlier_thinking
from dora_rl.envs.chat.messages import Message, ToolSchema, plain_messages
from dora_rl.envs.chat.template_traits import TemplateTraits, a_calling_turn, a_turn, behind_turn
from dora_rl.envs.chat.thoughts import CLOSE_CUT, BranchThinking, is_thinking_open, split_thinking
from dora_rl.envs.chat.tool_calls import READERS

_ASK = {"role": "user", "content": "."}


class TemplateCodec:
    """Messages to token ids by a chat template whose traits were probed."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        template: ChatTemplate,
        traits: TemplateTraits,
        thinking: ThinkingKept,
    ) -> None:
        self._tokenizer, self._template, self._traits = tokenizer, template, traits
        self._strips = thinking == "strip"
        self._stop_id = tokenizer.added[traits.stop]
        self._thinking = BranchThinking(tokenizer)

    @property
    def stop_ids(self) -> frozenset[int]:
        """The token with which the template ends a turn."""
        return frozenset((self._stop_id,))

    def begin(self, messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()) -> list[int]:
        """The whole context of a new branch, up to where the model answers."""
        plain = plain_messages(messages)
        if not plain:
            raise UserError("a chat begins with no message", hint="give the first turn a message")
        self._check_tools(plain, tools)
        if self._strips:
            plain = without_earlier_thinking(plain)
        return self._tokenizer.encode(
            self._template.up_to_answer(fit_messages(plain, tools, self._traits), tools)
        )

    def extend(
        self, ids: Sequence[int], messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()
    ) -> list[int] | None:
        """What is appended behind a sampled turn; None where a user's message takes thinking out of the past.

        `tools` are those the branch began with: they stand in its context.
        """
        plain = plain_messages(messages)
        self._check_tools(plain, tools)
        if self._strips and any(each["role"] == "user" for each in plain) and self._thinking.is_in(ids):
            return None
        new = fit_messages(plain, (), self._traits)
        text = self._template.up_to_answer([_ASK, _turn_before(new), *new], tools)
        end = behind_turn(text, self._traits.stop)
        if end is None:
            raise UserError(
                "the chat template leaves out the turn that these messages answer",
                hint="give them in the order in which they would be said",
            )
        appended = self._tokenizer.encode(self._traits.stop + text[end:])
        return appended[1:] if ids and ids[-1] == self._stop_id else [*self._thinking_closed(ids), *appended]

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSchema] = ()) -> Parsed:
        """What a model said with the tokens of one turn; never an error."""
        thinking, text = split_thinking(self._tokenizer.said(ids), is_open=self._traits.opens_thinking)
        form = self._traits.call_form
        text, calls = (text, []) if form is None else READERS[form](text)
        return Parsed(text=text, thinking=thinking, tool_calls=named_calls(calls, ids))

    def _check_tools(self, messages: list[dict[str, Any]], tools: Sequence[ToolSchema]) -> None:
        """Refuse tools where the template cannot be extended with them."""
        problem = self._traits.tools_problem
        if problem and (tools or any(each["role"] == "tool" for each in messages)):
            raise UserError(
                problem,
                hint="episode.tool_calls=hermes has tools and calls written as text, "
                f"or {install_hint('agents')} for more models",
            )

    def _thinking_closed(self, ids: Sequence[int]) -> list[int]:
        """What closes the thinking of a turn that was cut short in it."""
        end = len(ids)
        while end and ids[end - 1] != self._stop_id:
            end -= 1
        turn = self._tokenizer.decode(ids[end:])
        return self._tokenizer.encode(CLOSE_CUT) if is_thinking_open(turn) else []


def _turn_before(new: list[dict[str, Any]]) -> dict[str, Any]:
    """The turn that new messages follow: one with a call where they begin with its result."""
    if not new or new[0]["role"] != "tool":
        return a_turn()
    return a_calling_turn(call=new[0].get("tool_call_id", "callprobe"))
