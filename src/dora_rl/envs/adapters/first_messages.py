"""What an episode begins with: the row's prompt and, behind it, what the environment shows."""

from collections.abc import Sequence
from typing import Any

from dora_rl.envs.chat.messages import Message
from dora_rl.envs.data.rows import Prompt


def first_messages(prompt: Prompt | None, shown: Any) -> list[Message]:
    """The first messages of an episode: what is shown is put behind the last message of the prompt.

    `shown` is a text, parts of one, whole messages, or None. Messages are said after the prompt.
    """
    messages: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []
    messages += prompt if isinstance(prompt, list) else []
    if _are_messages(shown):
        return [*messages, *shown]
    if shown is None or shown == "":
        if not messages:
            raise ValueError(
                "the environment showed nothing, and the row has no prompt: nothing can be asked"
            )
        return messages
    if not messages:
        return [{"role": "user", "content": shown}]
    last = messages[-1]
    return [*messages[:-1], {**last, "content": _joined(last.get("content") or "", shown)}]


def _are_messages(shown: Any) -> bool:
    return (
        isinstance(shown, Sequence) and not isinstance(shown, str) and any("role" in each for each in shown)
    )


def _joined(content: Any, shown: Any) -> Any:
    if isinstance(content, str) and isinstance(shown, str):
        return content + shown
    return [*_parts(content), *_parts(shown)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
