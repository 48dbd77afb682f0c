"""Which codec a tokenizer gets, decided once and checked before any episode begins."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from dora_rl.core.errors import UserError, missing_package
from dora_rl.envs.chat.chat_tokenizer import ChatTokenizer, open_chat_tokenizer
from dora_rl.envs.chat.codec import Codec, ThinkingKept
from dora_rl.envs.chat.plain_codec import PlainCodec
from dora_rl.envs.chat.tool_calls import CallForm


def open_codec(
    tokenizer_directory: Path,
    *,
    thinking: ThinkingKept = "keep",
    tool_calls: Literal["auto"] | CallForm = "auto",
    template_options: Mapping[str, Any] | None = None,
) -> Codec:
    """The codec of a tokenizer; a UserError where its chat template cannot be extended."""
    options = dict(template_options or {})
    try:
        tokenizer = open_chat_tokenizer(tokenizer_directory)
        return choose_codec(tokenizer, thinking=thinking, tool_calls=tool_calls, options=options)
    except ModuleNotFoundError as error:
        raise missing_package(error, needed_for="a chat") or error from error


def choose_codec(
    tokenizer: ChatTokenizer,
    *,
    thinking: ThinkingKept,
    tool_calls: Literal["auto"] | CallForm,
    options: Mapping[str, Any],
) -> Codec:
    """Plain lines without a chat template; else a renderer that writes the same, or the template."""
    if tokenizer.template is None:
        if options:
            raise UserError(
                "template options are for a chat template, and the tokenizer has none",
                hint="leave data.template_options out",
            )
        return PlainCodec(tokenizer, thinking, "hermes" if tool_calls == "auto" else tool_calls)
    # Here, not above: both need packages that a tokenizer without a template does without.
    from dora_rl.envs.chat.chat_template import ChatTemplate
    from dora_rl.envs.chat.renderer_codec import find_renderer_codec
    from dora_rl.envs.chat.template_codec import TemplateCodec
    from dora_rl.envs.chat.template_traits import probe_template

    template = ChatTemplate(tokenizer.template, tokenizer.special | dict(options))
    if tool_calls == "auto":
        found = find_renderer_codec(tokenizer, template, thinking, options)
        if found is not None:
            return found
    traits = probe_template(template, tokenizer)
    if tool_calls not in ("auto", traits.call_form):
        # What a template says of tools teaches its own form: another one has to be taught by us.
        traits = msgspec.structs.replace(
            traits, writes_tools=False, writes_calls=False, call_form=tool_calls, tools_problem=None
        )
    return TemplateCodec(tokenizer, template, traits, thinking)
