"""Messages as a chat template can take them: what it does not know is written as text."""

from collections.abc import Sequence
from typing import Any

from dora_rl.envs.chat.messages import ToolSchema
from dora_rl.envs.chat.template_traits import TemplateTraits
from dora_rl.envs.chat.thoughts import joined_thinking
from dora_rl.envs.chat.tool_calls import WRITERS, tools_as_text


def fit_messages(
    messages: Sequence[dict[str, Any]], tools: Sequence[ToolSchema], traits: TemplateTraits
) -> list[dict[str, Any]]:
    """Messages with thinking, calls, results and tools as text where the template has no place for them."""
    fitted = [_fit_message(message, traits) for message in messages]
    if not traits.writes_results:
        fitted = _joined_results(fitted)
    if tools and not traits.writes_tools:
        fitted = _with_tools(fitted, tools, traits)
    return fitted


def without_earlier_thinking(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without what was thought before the last one by the user."""
    last = max((number for number, each in enumerate(messages) if each["role"] == "user"), default=0)
    return [
        {key: value for key, value in each.items() if number > last or key != "reasoning_content"}
        for number, each in enumerate(messages)
    ]


def _fit_message(message: dict[str, Any], traits: TemplateTraits) -> dict[str, Any]:
    if message["role"] == "tool" and not traits.writes_results:
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if "tool_calls" in message and not traits.writes_calls:
        write = WRITERS[traits.call_form or "hermes"]
        functions = [call["function"] for call in message["tool_calls"]]
        calls = [write(function["name"], function["arguments"]) for function in functions]
        said = [message["content"]] if message["content"] else []
        message = {key: value for key, value in message.items() if key != "tool_calls"}
        message["content"] = "\n".join([*said, *calls])
    if "reasoning_content" in message and not traits.writes_thinking:
        content = joined_thinking(message["reasoning_content"], message["content"])
        return {"role": "assistant", "content": content} | (
            {"tool_calls": message["tool_calls"]} if "tool_calls" in message else {}
        )
    return message


def _joined_results(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results that became the user's in one message: templates without tools often want roles in turn."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        is_result = message["role"] == "user" and message["content"].startswith("<tool_response>")
        if is_result and joined and joined[-1]["role"] == "user":
            joined[-1] = joined[-1] | {"content": f"{joined[-1]['content']}\n{message['content']}"}
        else:
            joined.append(message)
    return joined


def _with_tools(
    messages: list[dict[str, Any]], tools: Sequence[ToolSchema], traits: TemplateTraits
) -> list[dict[str, Any]]:
    """Messages whose first, by the system, ends with what tools there are."""
    text = tools_as_text(tools, traits.call_form or "hermes")
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
