"""pass@k: the chance that at least one of k samples passes, estimated from n samples without bias.

Of n samples of a prompt, c of which pass, 1 - C(n - c, k) / C(n, k) is the mean over all choices of k of
them (arXiv 2107.03374, equation 1); taking 1 - (1 - c/n)^k instead would be too low.
"""

from collections.abc import Iterable, Mapping
from math import comb
from statistics import fmean


def pass_at(num_samples: int, num_passed: int, k: int) -> float:
    """The unbiased estimate of pass@k from one prompt's samples; needs at least k of them."""
    return 1.0 - comb(num_samples - num_passed, k) / comb(num_samples, k)


def pass_rates(by_prompt: Iterable[Iterable[bool]], samples: int) -> dict[str, float]:
    """Mean pass@k over prompts, for k = 1, 2, 4, ... and `samples`; of prompts with at least k samples."""
    found = [(len(own), sum(own)) for own in map(list, by_prompt)]
    powers = [2**power for power in range(samples.bit_length())]
    rates: dict[str, float] = {}
    for k in sorted({*powers, samples}):
        if counted := [pass_at(n, passed, k) for n, passed in found if n >= k]:
            rates[f"pass@{k}"] = fmean(counted)
    return rates


def is_passed(
    reward: float | None, values: Mapping[str, float | None], function: str | None, least: float
) -> bool | None:
    """Whether a sample passes: its reward, or one function's value, reaches `least`; None if it has none."""
    judged = reward if function is None else values.get(function)
    return None if judged is None else judged >= least
