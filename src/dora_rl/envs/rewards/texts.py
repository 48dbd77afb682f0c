"""The text of a completion, whether it came as a string or as a list of messages."""

from collections.abc import Mapping, Sequence
from typing import Any

Completion = str | Sequence[Mapping[str, Any]]
"""A completion: a string where the prompt was one, else the messages that answer the prompt."""


def text_of(completion: Completion) -> str:
    """The text of a completion; of several messages, that of the last one that has any."""
    if isinstance(completion, str):
        return completion
    for message in reversed(completion):
        if message.get("content"):
            return _content(message["content"])
    return ""


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
