"""Answers that take long to work out, told by their looks: what a model writes must not cost time.

A computer algebra system works out `9^{9^{9}}` or `1000000!` in one operation on a number of millions of
digits, which no time limit interrupts. The signs are few and rough on purpose: an answer that has one of them
is compared as it is written.
"""

import re
from math import prod

_LONGEST, _DEEPEST = 2000, 30
_LARGEST_EXPONENT = 10**6
"""Bound on the product of all numbers that stand as exponents: of 2^{2^{2}} as of ((2^2)^2)^2."""
_EXPONENT = re.compile(r"\^\s*[{(]?\s*[-+]?(\d+)")
_SIGNS = re.compile(
    r"\d{400}"
    r"|\^\s*\d+\s*\^"
    r"|\d[eE][-+]?\d{4}|\d_\d"
    r"|\d{4}\s*[)}\]]*\s*!|!\s*[)}\]]*\s*!"
    r"|\\[dt]?binom|\\prod|\\choose"
)


def is_costly(answer: str) -> bool:
    """Whether a written answer may take long to be worked out as mathematics."""
    answer = answer[-_LONGEST:].replace("**", "^")
    if _SIGNS.search(answer) or _is_nested(answer):
        return True
    return prod(int(digits) for digits in _EXPONENT.findall(answer) if int(digits)) > _LARGEST_EXPONENT


def _is_nested(text: str) -> bool:
    """Whether brackets are nested deeply, or a number is raised to a power within an exponent."""
    is_exponent: list[bool] = []
    last = ""
    for sign in text:
        if sign in "([{":
            is_exponent.append(last == "^")
        elif sign in ")]}":
            del is_exponent[-1:]
            continue  # What is raised by a sign after it is what stands before it.
        elif sign == "^" and last.isdigit() and any(is_exponent):
            return True
        if not sign.isspace():
            last = sign
        if len(is_exponent) > _DEEPEST:
            return True
    return False
