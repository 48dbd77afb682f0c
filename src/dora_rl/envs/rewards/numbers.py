r"""The answer in a text: the last `\boxed{...}`, else what follows `####`, else the last number.

Numbers are compared as exact fractions: 0.5, 1/2, \frac{1}{2} and 50% are equal, 0.333 and 1/3 are not.
"""

import re
from fractions import Fraction

_FRACTION = re.compile(r"([-+]?)\\[dt]?frac\{(-?\d+)\}\{(-?\d+)\}")
_LAST_NUMBER = re.compile(
    r"(?<![\w.])[-+]?\$?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:[eE][-+]?\d+)?"
    r"(?:\s*/\s*\d+)?(?:\\?%)?"
)
_ORNAMENTS = re.compile(r"\\left|\\right|\\[,;! ]|\\text\{[^}]*\}|\s|\$|\\\(|\\\)")
_LONGEST = 1000
"""Characters from which on an answer is no answer: what a model writes must not cost time."""
_TOO_LARGE = re.compile(r"[eE][-+]?\d{4}|_")
"""Exactness would cost as many digits as an exponent says; Python also takes `1e3_000_000` for a number."""


def answer_in(text: str, *, is_lenient: bool = True) -> str | None:
    """The answer that a text gives, or None; unless `is_lenient`, only what is boxed or marked counts."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0].strip() or None
    return last_number(text) if is_lenient else None


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, its braces balanced."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len("\\boxed{")
    for end in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[begin:end].strip()
    return None


def last_number(text: str) -> str | None:
    """The last number written in a text; None where there is none."""
    found = [match.group() for match in _LAST_NUMBER.finditer(_plain_fractions(text))]
    return found[-1] if found else None


def as_number(text: str) -> Fraction | None:
    """The exact value of a text that is a number; None where it is not one, or too long to be looked at."""
    if len(text) > _LONGEST:
        return None
    bare = _ORNAMENTS.sub("", _plain_fractions(text)).replace("\\%", "%").rstrip(".")
    scale = Fraction(1)
    if bare.endswith("%"):
        bare, scale = bare[:-1], Fraction(1, 100)
    bare = re.sub(r"(?<=\d),(?=\d{3}(?:\D|$))", "", bare)
    if _TOO_LARGE.search(bare):
        return None
    try:
        return Fraction(bare) * scale
    except (ValueError, ZeroDivisionError):
        return None


def is_same_answer(given: str, expected: str) -> bool:
    """Whether two answers are equal: as numbers where the expected one is, else as bare texts."""
    if len(given) > _LONGEST + 2 * len(expected):
        return False
    number = as_number(expected)
    if number is None:
        return _ORNAMENTS.sub("", given).lower() == _ORNAMENTS.sub("", expected).lower()
    if as_number(given) is None:
        # A number with words around it: `72 dollars`, `x = 72`.
        given = last_number(given) or given
    # `50%` answers 0.5 and, where per cent were asked for, 50.
    return number in (as_number(given), as_number(given.replace("%", "")))


def _plain_fractions(text: str) -> str:
    return _FRACTION.sub(r"\1\2/\3", text)
