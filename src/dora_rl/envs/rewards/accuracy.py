"""Is the answer right? By math-verify where it is installed, else by exact comparison of numbers.

The comparison without math-verify knows the last `\\boxed{...}`, `#### answer` and the last number of a text
(`numbers.py`), and compares rational numbers exactly; other mathematics it compares as text.
"""

import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

from dora_rl.core.named import optional_module
from dora_rl.envs.rewards.costly_answers import is_costly
from dora_rl.envs.rewards.numbers import answer_in, is_same_answer
from dora_rl.envs.rewards.texts import Completion, text_of

Verify = Callable[[str, str], float | None]

_LOOKED_AT = 2000
"""Characters at the end of a text without a marked answer in which math-verify looks for one."""
_SECONDS = 2
"""Seconds of math-verify's own limits, which interrupt Python but no single operation on large numbers."""


def accuracy_reward(
    completions: Sequence[Completion],
    solution: Sequence[Any],
    *,
    checker: Literal["auto", "math-verify", "numbers"] = "auto",
    **columns: Any,
) -> list[float | None]:
    """1 for the answer of `solution`, 0 for another or none; None where the solution holds no answer."""
    verify = _checker(checker)
    return [
        verify(text_of(completion), str(expected))
        for completion, expected in zip(completions, solution, strict=True)
    ]


def _checker(name: str) -> Verify:
    if name == "numbers" or (name == "auto" and find_spec("math_verify") is None):
        return by_numbers
    return _math_verify()


def by_numbers(text: str, solution: str) -> float | None:
    """1 if a text's answer is the solution's, compared as numbers without math-verify; else 0, or None."""
    # A solution that is a bare answer (`72`, `x+1`) is its own answer.
    expected = answer_in(solution, is_lenient=False) or solution.strip()
    if not expected:
        return None
    given = answer_in(text)
    return float(given is not None and is_same_answer(given, expected))


@cache
def _math_verify() -> Verify:
    package = optional_module(
        "math_verify", needed_for="accuracy_reward with checker math-verify", install="math-verify"
    )

    def verify(text: str, solution: str) -> float | None:
        # Its limits use signals, which only a main thread gets.
        limit_s = _SECONDS if threading.current_thread() is threading.main_thread() else None
        expected = package.parse(_marked(solution), parsing_timeout=limit_s)
        if not expected:
            return None
        answer = _marked(text)
        if is_costly(answer):
            return by_numbers(text, solution)
        given = package.parse(answer[-_LOOKED_AT:], parsing_timeout=limit_s)
        return float(package.verify(expected, given, timeout_seconds=limit_s))

    return verify


def _marked(text: str) -> str:
    """The answer that a text marks, boxed, so that no number on the way is taken for it; else the text."""
    answer = answer_in(text, is_lenient=False)
    return text if answer is None else f"\\boxed{{{answer}}}"
