"""A reward for exact text: is the completion exactly the solution?"""

from collections.abc import Sequence
from typing import Any

from dora_rl.envs.rewards.texts import Completion, text_of


def exact_match(
    completions: Sequence[Completion], solution: Sequence[Any], *, strip: bool = True, **columns: Any
) -> list[float]:
    """1 for the very text of `solution`, spaces around it aside unless `strip` is off."""
    texts = [text_of(completion) for completion in completions]
    pairs = zip(texts, map(str, solution), strict=True)
    return [float(a.strip() == b.strip() if strip else a == b) for a, b in pairs]
