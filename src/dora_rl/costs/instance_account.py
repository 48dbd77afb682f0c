"""The seconds of one instance: what it had to do at every moment, and what it says it did instead.

Knows no run: is told when something changes, and what an instance without work waits for.
"""

from msgspec import Struct, field

from dora_rl.core.instance_seconds import InstanceSeconds
from dora_rl.costs.seconds_spent import Seconds, Spent, add_seconds

_MEASURED = {
    "prefill_s": Spent.PREFILL,
    "recompute_s": Spent.RECOMPUTE,
    "kv_moves_s": Spent.KV_MOVES,
    "weight_loads_s": Spent.WEIGHT_LOADS,
    "other_s": Spent.OTHER,
}

Work = tuple[int, bool]
"""What requests decode as: their version, and whether for an evaluation."""


class InstanceAccount(Struct, kw_only=True):
    """One instance: what it has to do, and its seconds since they were last booked."""

    since: float
    away: Spent | None = Spent.STARTING
    """Why the instance cannot decode; None if it can."""
    running: dict[Work, int] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    """Trajectories with KV here whose environment has the turn."""
    arriving: set[int] = field(default_factory=set)
    loading: set[int] = field(default_factory=set)
    decoded: dict[Work, float] = field(default_factory=dict)
    idle: Seconds = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_MEASURED, 0.0))
    """What the instance last said of its own seconds."""
    pass_rows: float = 0.0
    """Number of requests whose decoding takes as long as a version's pass by itself, as the instance said."""
    unbooked: Seconds = field(default_factory=dict)
    """Seconds the instance said it did not decode in, and which are still in `decoded`."""

    def pass_time(self, now: float, waits_for: Spent) -> None:
        """Count the time up to `now`; with nothing else to do, the instance waited for `waits_for`."""
        elapsed_s, self.since = now - self.since, now
        if elapsed_s <= 0.0:
            return
        if self.away is None and self.running:
            for work, share in self._shares().items():
                self.decoded[work] = self.decoded.get(work, 0.0) + share * elapsed_s
        else:
            add_seconds(self.idle, self._idles_for(waits_for), elapsed_s)

    def _shares(self) -> dict[Work, float]:
        """Each work's share of the time: of its version's pass, and by its requests."""
        if len(self.running) == 1:
            return dict.fromkeys(self.running, 1.0)
        of_version: dict[int, int] = {}
        for (version, _), number in self.running.items():
            of_version[version] = of_version.get(version, 0) + number
        total = sum(of_version.values()) + self.pass_rows * len(of_version)
        return {
            work: number * (1.0 + self.pass_rows / of_version[work[0]]) / total
            for work, number in self.running.items()
        }

    def _idles_for(self, waits_for: Spent) -> Spent:
        if self.away is not None:
            return self.away
        if self.arriving:
            return Spent.KV_MOVES
        if self.loading:
            return Spent.WEIGHT_LOADS
        return Spent.ENVIRONMENT if self.waiting else waits_for

    def change(self, work: Work, change: int) -> None:
        number = self.running.get(work, 0) + change
        if number:
            self.running[work] = number
        else:
            del self.running[work]

    def heard(self, said: InstanceSeconds) -> None:
        """Take in what the instance measured since it last said so."""
        for name, spent in _MEASURED.items():
            total = getattr(said, name)
            add_seconds(self.unbooked, spent, max(0.0, total - self.measured[name]))
            self.measured[name] = total
        self.pass_rows = said.pass_rows

    def leave(self) -> None:
        """Forget everything but the seconds of an instance that is gone."""
        self.away = Spent.DOWN
        self.waiting, self.arriving, self.loading = set(), set(), set()
        self.measured = dict.fromkeys(_MEASURED, 0.0)

    def booked(self) -> tuple[Seconds, dict[Work, float]]:
        """The seconds since the last booking; what was measured is taken off those with requests.

        A report may be ahead of them, so what does not fit is left for the next booking.
        """
        seconds, self.idle = self.idle, {}
        decoded, self.decoded = self.decoded, {}
        with_requests, claimed = sum(decoded.values()), sum(self.unbooked.values())
        if claimed > 0.0:
            share = min(1.0, with_requests / claimed)
            for spent, claim in self.unbooked.items():
                add_seconds(seconds, spent, share * claim)
                self.unbooked[spent] = (1.0 - share) * claim
            left = 1.0 - share * claimed / with_requests if with_requests else 0.0
            decoded = {work: left * seconds for work, seconds in decoded.items()}
        return seconds, decoded
