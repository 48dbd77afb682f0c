"""Thinking in a model's words: what stands between <think> and </think> before the answer."""

import re
from collections.abc import Sequence

from dora_rl.envs.chat.chat_tokenizer import ChatTokenizer

OPEN, CLOSE = "<think>", "</think>"
CLOSE_CUT = f"\n{CLOSE}\n\n"
"""What closes thinking that was cut short."""
_BLANK = re.compile(rf"{OPEN}\s*{CLOSE}\s*")
_OPEN_AT_END = re.compile(rf"{OPEN}\s*\Z")


def split_thinking(text: str, *, is_open: bool) -> tuple[str, str]:
    """A turn's thinking and the rest; thinking that never ends is all there is.

    `is_open` where the context already opened it, so that the turn begins inside.
    """
    begun = text.lstrip()
    if begun.startswith(OPEN):
        is_open, text = True, begun.removeprefix(OPEN)
    if not is_open:
        return "", text
    thinking, _, said = text.partition(CLOSE)
    return thinking.strip("\n"), said.lstrip("\n")


def joined_thinking(thinking: str, text: str) -> str:
    """Thinking and text in one, for a template that knows nothing of thinking."""
    return f"{OPEN}\n{thinking}\n{CLOSE}\n\n{text}"


def is_thinking_open(text: str) -> bool:
    """Whether a text ends inside thinking."""
    return text.rfind(OPEN) > text.rfind(CLOSE)


class BranchThinking:
    """Whether the ids of a branch hold thinking: by its tokens where the tokenizer has some for it."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._open, self._close = tokenizer.token_id(OPEN), tokenizer.token_id(CLOSE)
        self._blank = tokenizer.encode(f"{OPEN}\n\n{CLOSE}")

    def is_in(self, ids: Sequence[int]) -> bool:
        """Whether there is any, empty blocks aside."""
        if self._open is None or self._close is None:
            return has_thinking(self._tokenizer.decode(ids))
        blank_until = 0
        for place, token in enumerate(ids):
            if token == self._open and list(ids[place : place + len(self._blank)]) == self._blank:
                blank_until = place + len(self._blank)
            elif token in (self._open, self._close) and place >= blank_until:
                return True
        return False


def has_thinking(text: str) -> bool:
    """Whether there is any thinking in a text; an empty block is none."""
    rest = _BLANK.sub("", text)
    return OPEN in rest or CLOSE in rest


def without_blank_thinking(text: str) -> str:
    """A text without the empty blocks that templates write around answers, and without one just opened."""
    return _OPEN_AT_END.sub("", _BLANK.sub("", text))
