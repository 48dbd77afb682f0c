"""A chat template, rendered as transformers renders it, but with neither torch nor a clock.

A template that asks for the date is given one that never changes: an episode that begins again tomorrow must
begin with the same tokens.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dora_rl.core.errors import UserError
from dora_rl.envs.chat.messages import ToolSchema

DATE = datetime(2024, 7, 26)
"""The date of every template that asks for one, which is what Llama's own says where there is no clock."""


TURN = "a-turn-that-was-sampled"
"""What stands for words of the assistant in a rendering: the place where it is cut."""


class GenerationTag(Extension):
    """The tag that marks an assistant's words for masks; here it only holds them."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own form

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class ChatTemplate:
    """One template with its variables: special tokens, and options of the recipe."""

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        self._variables = dict(variables)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise UserError(
                f"the chat template cannot be read: {error}",
                hint="copy chat_template.jinja from the model it was made from",
            ) from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSchema], *, is_answer_next: bool
    ) -> str:
        """The chat as text, up to where the model answers if it is to."""
        try:
            return self._template.render(
                messages=messages,
                tools=list(tools) or None,
                add_generation_prompt=is_answer_next,
                **self._variables,
            )
        except (
            Exception
        ) as error:  # a template is a program: it raises by itself, or trips over what it is given
            roles = ", ".join(message["role"] for message in messages[-4:])
            raise UserError(
                f"the chat template cannot take messages by {roles}: {type(error).__name__}: {error}",
                hint="a template may want roles in turn, or no system message",
            ) from error

    def up_to_answer(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolSchema]) -> str:
        """The chat up to where the model answers, or goes on with what the assistant began to say."""
        last = messages[-1]
        if last["role"] != "assistant" or last["content"] == TURN:
            return self.render(messages, tools, is_answer_next=True)
        begun = {**last, "content": last["content"] + TURN}
        text = self.render([*messages[:-1], begun], tools, is_answer_next=False)
        return text[: text.rindex(TURN)]


def _environment() -> Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    names: dict[str, Callable[..., Any]] = {"raise_exception": _raise, "strftime_now": DATE.strftime}
    environment.globals.update(names)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    # jinja2's own filter escapes what HTML would take for tags.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
