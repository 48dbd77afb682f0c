"""What a decode round takes, learned from what instances report: so much a version, a row and a token of KV.

Versions take turns, one step each a round. So where a step takes its time whatever is in it, as with small
models, a request decodes half as fast beside a second version, and more rows cost nothing; where rows, or
the KV they read, are what takes the time, it is the other way round.
"""

from dora_rl.core.record import Record

_LASTS = 0.98
"""Weight of all that was seen before, at each observation."""
_LEAST_SEEN = 4
_SWEEPS = 200


class RoundCost(Record, frozen=True):
    """Seconds of a decode round of one instance, and what its rounds were like of late."""

    version_s: float
    row_s: float
    versions: float
    """Versions in a round, in the mean."""
    rows: float
    """Rows in a round, in the mean."""
    token_s: float = 0.0
    """Seconds for each token of KV that is read."""
    kv_tokens: float = 0.0
    """Tokens of KV read in a round, in the mean."""

    def round_s(self, versions: float, rows: float, kv_tokens: float) -> float:
        """Seconds of a round of so many versions, rows and tokens of KV."""
        return self.version_s * versions + self.row_s * rows + self.token_s * kv_tokens

    def drag(self, versions: float, rows: float) -> float:
        """How much longer a round of so many versions and rows takes than the mean round."""
        mean_s = self.round_s(self.versions, self.rows, self.kv_tokens)
        return self.round_s(versions, rows, self.kv_tokens * rows / max(1.0, self.rows)) / mean_s


class LearnedRoundCost:
    """A fit to the rounds seen of late: least squares of relative errors, no slope below zero.

    Relative, because single rounds take a thousand times as long as others while kernels are compiled.
    """

    def __init__(self) -> None:
        self._products = [[0.0] * 3 for _ in range(3)]
        self._sums = [0.0] * 3
        self._means = [0.0] * 3
        self._weight = 0.0
        self._num_seen = 0

    def observe(self, versions: int, rows: int, kv_tokens: float, seconds: float) -> None:
        """Learn that a round took so long."""
        seen = (float(versions), float(rows), kv_tokens)
        self._weight = _LASTS * self._weight + 1.0
        for i, size in enumerate(seen):
            self._means[i] = _LASTS * self._means[i] + size
            self._sums[i] = _LASTS * self._sums[i] + size / seconds
            for j, other in enumerate(seen):
                self._products[i][j] = _LASTS * self._products[i][j] + size * other / seconds**2
        self._num_seen += 1

    def believed(self) -> RoundCost | None:
        """What was learned; None while that is too little."""
        if self._num_seen < _LEAST_SEEN:
            return None
        version_s, row_s, token_s = self._slopes()
        versions, rows, kv_tokens = (mean / self._weight for mean in self._means)
        return RoundCost(
            version_s=version_s,
            row_s=row_s,
            token_s=token_s,
            versions=versions,
            rows=rows,
            kv_tokens=kv_tokens,
        )

    def _slopes(self) -> list[float]:
        """Slopes by descent along one after the other: rounds that were all alike are the version's."""
        slopes = [0.0] * 3
        for _ in range(_SWEEPS):
            for i, products in enumerate(self._products):
                if products[i]:
                    rest = sum(products[j] * slopes[j] for j in range(3) if j != i)
                    slopes[i] = max(0.0, (self._sums[i] - rest) / products[i])
        return slopes
