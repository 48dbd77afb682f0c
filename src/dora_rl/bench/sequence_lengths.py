"""Lengths with a long tail, drawn with a seed: what engine and trainer are measured on."""

import math
import random

from dora_rl.core.record import Record


class SequenceLengths(Record, frozen=True):
    """Lognormal lengths in tokens, cut: most are short, and the longest is many times the mean."""

    count: int = 256
    median: float = 400.0
    sigma: float = 0.9
    low: int = 16
    high: int = 4096
    seed: int = 0

    def draw(self) -> list[int]:
        """Draw the lengths, the same for the same seed."""
        rng = random.Random(self.seed)
        mu = math.log(self.median)
        return [
            min(max(round(rng.lognormvariate(mu, self.sigma)), self.low), self.high)
            for _ in range(self.count)
        ]
