"""How long groups take: learned from those that finished and from those still under way.

Seconds count only while something can generate, so a pause of generation ages nobody. Recent groups count;
what is unfinished is evidence too (it took at least so long), without which only short groups would be
known while a run is young.
"""

from collections import deque

from dora_rl.control.estimates import Average

_QUANTILES = 64
_REMEMBERED = 2048
"""Number of ended groups and members that are remembered."""


class Durations:
    """Generating seconds from a group's admission to its end, and to the end of each of its members."""

    def __init__(self) -> None:
        self._started: dict[int, float] = {}
        self._groups: deque[float] = deque(maxlen=_REMEMBERED)
        self._members: deque[float] = deque(maxlen=_REMEMBERED)
        self._pauses_s = 0.0
        self._paused_at: float | None = None
        self._pauses_seen_s = 0.0
        self.pause = Average(0.0)
        """Seconds from one publish to the next in which nothing could generate."""
        self.quick_s = 0.0
        """Seconds in which hardly any group ends, as of the last publish."""
        self.pass_rate = Average(1.0, weight=0.02)
        """Share of groups that pass the filters."""

    # --- learning ---

    def started(self, group: int, now: float) -> None:
        self._started[group] = self._generating_s(now)

    def member_ended(self, group: int, now: float) -> None:
        if (since := self._started.get(group)) is not None:
            self._members.append(self._generating_s(now) - since)

    def ended(self, group: int, now: float, *, passed: bool) -> None:
        """A group finished, or was closed by a filter."""
        if (since := self._started.pop(group, None)) is not None:
            self._groups.append(self._generating_s(now) - since)
            self.pass_rate.observe(float(passed))

    def forget(self, group: int) -> None:
        """A group was closed before its end, or after it: it is under way no longer."""
        self._started.pop(group, None)

    def paused(self, now: float) -> None:
        """Nothing can generate from now on."""
        if self._paused_at is None:
            self._paused_at = now

    def resumed(self, now: float) -> None:
        """Something can generate again."""
        if self._paused_at is not None:
            self._pauses_s += now - self._paused_at
            self._paused_at = None

    def _generating_s(self, now: float) -> float:
        return (now if self._paused_at is None else self._paused_at) - self._pauses_s

    def published(self) -> None:
        """A step ended: look again how long the quickest groups take, and how long nothing generated."""
        self.pause.observe(self._pauses_s - self._pauses_seen_s)
        self._pauses_seen_s = self._pauses_s
        self.quick_s = sorted(self._groups)[len(self._groups) // 20] if self._groups else 0.0

    # --- believing ---

    @property
    def num_groups(self) -> int:
        """Number of ended groups that the durations are learned from."""
        return len(self._groups)

    def member_quantiles(self) -> list[float]:
        """Seconds from a group's start to the end of a member, in equal parts, shortest first."""
        ordered = sorted(self._members)
        return [ordered[int((i + 0.5) * len(ordered) / _QUANTILES)] for i in range(_QUANTILES)]

    def group_quantiles(self, now: float) -> list[float]:
        """Seconds of a group in equal parts, shortest first: the estimate of Kaplan and Meier."""
        at = self._generating_s(now)
        seen = sorted([(d, True) for d in self._groups] + [(at - s, False) for s in self._started.values()])
        quantiles: list[float] = []
        left, survival = len(seen), 1.0
        for duration, is_end in seen:
            if is_end:
                survival *= (left - 1) / left
                while len(quantiles) < _QUANTILES and 1.0 - survival >= (len(quantiles) + 0.5) / _QUANTILES:
                    quantiles.append(duration)
            left -= 1
        # What outlived everything that ended: somewhat longer than the longest seen.
        return quantiles + [1.25 * seen[-1][0]] * (_QUANTILES - len(quantiles))
