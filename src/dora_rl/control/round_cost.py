"""What a decode round takes, learned from what instances report: so much a version, so much a row.

Versions take turns, one step each a round. So where a step takes its time whatever is in it, as with small
models, a request decodes half as fast beside a second version, and more rows cost nothing; where rows are
what takes the time, it is the other way round.
"""

from dora_rl.core.record import Record

_LASTS = 0.98
"""Weight of all that was seen before, at each observation."""
_LEAST_SEEN = 4


class RoundCost(Record, frozen=True):
    """Seconds of a decode round of one instance, and what its rounds were like of late."""

    version_s: float
    row_s: float
    versions: float
    """Versions in a round, in the mean."""
    rows: float
    """Rows in a round, in the mean."""

    def drag(self, versions: float, rows: float) -> float:
        """How much longer a round of so many versions and rows takes than the mean round."""
        mean_s = self.version_s * self.versions + self.row_s * self.rows
        return (self.version_s * versions + self.row_s * rows) / mean_s


class LearnedRoundCost:
    """A fit to the rounds seen of late: least squares of relative errors, neither slope below zero.

    Relative, because single rounds take a thousand times as long as others while kernels are compiled.
    """

    def __init__(self) -> None:
        self._weight = self._versions = self._rows = 0.0
        self._versions2 = self._rows2 = self._both = 0.0
        self._versions_s = self._rows_s = 0.0
        self._num_seen = 0

    def observe(self, versions: int, rows: int, seconds: float) -> None:
        """Learn that a round took so long."""
        v, r = versions / seconds, rows / seconds
        self._weight = _LASTS * self._weight + 1.0
        self._versions = _LASTS * self._versions + versions
        self._rows = _LASTS * self._rows + rows
        self._versions2 = _LASTS * self._versions2 + v * v
        self._rows2 = _LASTS * self._rows2 + r * r
        self._both = _LASTS * self._both + v * r
        self._versions_s = _LASTS * self._versions_s + v
        self._rows_s = _LASTS * self._rows_s + r
        self._num_seen += 1

    def believed(self) -> RoundCost | None:
        """What was learned; None while that is too little."""
        if self._num_seen < _LEAST_SEEN:
            return None
        version_s, row_s = self._slopes()
        return RoundCost(
            version_s=version_s,
            row_s=row_s,
            versions=self._versions / self._weight,
            rows=self._rows / self._weight,
        )

    def _slopes(self) -> tuple[float, float]:
        determinant = self._versions2 * self._rows2 - self._both**2
        # Rounds that were all alike cannot be told apart: then all is the version's.
        if determinant > 1e-3 * self._versions2 * self._rows2:
            version_s = (self._versions_s * self._rows2 - self._rows_s * self._both) / determinant
            row_s = (self._rows_s * self._versions2 - self._versions_s * self._both) / determinant
            if version_s <= 0.0:
                return 0.0, self._rows_s / self._rows2
            if row_s > 0.0:
                return version_s, row_s
        return self._versions_s / self._versions2, 0.0
