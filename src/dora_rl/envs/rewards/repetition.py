"""A penalty on repetition, by the share of repeated n-grams."""

from collections.abc import Sequence
from typing import Any

from dora_rl.envs.rewards.texts import Completion, text_of


def repetition_penalty(
    completions: Sequence[Completion], *, ngram: int = 3, max_penalty: float = -1.0, **columns: Any
) -> list[float]:
    """`max_penalty` times the share of word n-grams that occurred before; 0 for fewer words than n."""
    if ngram < 1 or max_penalty > 0:
        raise ValueError(f"ngram = {ngram} must be positive, max_penalty = {max_penalty} must not")
    return [
        max_penalty * _repeated_share(text_of(completion).lower().split(), ngram)
        for completion in completions
    ]


def _repeated_share(words: list[str], ngram: int) -> float:
    ngrams = [tuple(words[start : start + ngram]) for start in range(len(words) - ngram + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
