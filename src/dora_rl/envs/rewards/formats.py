"""Rewards for form: does the completion match a pattern?"""

import re
from collections.abc import Sequence
from typing import Any

from dora_rl.envs.rewards.texts import Completion, text_of

_THINK = r"<think>(?!.*<think>).*?</think>.*"


def think_format_reward(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """1 where the completion begins with one `<think> ... </think>`, as TRL's function of this name asks."""
    return format_reward(completions, pattern=_THINK)


def format_reward(completions: Sequence[Completion], *, pattern: str, **columns: Any) -> list[float]:
    """1 where the whole completion matches the regular expression (`.` matches line ends too)."""
    compiled = re.compile(pattern, re.DOTALL)
    return [float(compiled.fullmatch(text_of(completion)) is not None) for completion in completions]
