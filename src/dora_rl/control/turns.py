"""The level of R where devices take turns: what each level would give, found by playing the run in small.

Where nothing generates while a step trains, an interval is the pause for a step and the decoding of a batch,
the trainer waits whatever R is, and rows are free whenever short members end. So neither says what another R
would give. What does is how well the rounds of decoding are filled, how many versions share them, and whom
the window waits for. That follows from lengths, which do not depend on R, and from what a round costs: both
are learned, and a run of groups drawn from those seen is played through in rounds, for one R after another.
"""

from collections import defaultdict
from collections.abc import Sequence
from random import Random

from dora_rl.control.estimates import Average
from dora_rl.control.round_cost import RoundCost
from dora_rl.core.record import Record

_CELLS = 96
"""Time steps in which the longest member is resolved."""
_PUBLISHES = 16
"""Steps that are played beyond those in which a run settles."""
_RATIOS = (1.0, 1.125, 1.25, 1.5, 1.75, 2.0, 2.5)
"""Levels that are looked at, in batches, and beyond them every whole number up to S + 1."""
_AT_ONCE = 2
"""Levels that are looked at again at each publish."""
_LASTS = 0.1
"""Weight of a new look at a level."""
_KEPT = 1.5
"""A level is kept up to so many times the cost, and left for one that costs so much less."""


class DevicesInTurn(Record, frozen=True):
    """What is known of a run whose devices generate and train in turn."""

    batch_groups: int
    group_size: int
    max_staleness: int
    pause_s: float
    """Seconds of a step in which nothing generates."""
    groups: Sequence[Sequence[float]]
    """Decode rounds that each member took, group by group."""
    prompt_tokens: float
    cost: RoundCost
    instances: int
    slots: int
    kv_tokens: float
    pass_rate: float = 1.0


def publish_interval_s(turns: DevicesInTurn, active_groups: int, *, seed: int = 0) -> float:
    """Seconds from one publish to the next with this R, in a run of groups drawn from those seen."""
    rng, batch, bound = Random(seed), turns.batch_groups, turns.max_staleness
    longest = max(map(max, turns.groups))
    cell = max(1.0, longest / _CELLS)
    lasting = [[max(1, round(rounds / cell)) for rounds in group] for group in turns.groups]
    ending: defaultdict[tuple[int, int], int] = defaultdict(int)  # Members, by cell and version.
    finishing: defaultdict[tuple[int, int], int] = defaultdict(int)  # Groups, likewise.
    freed: defaultdict[int, float] = defaultdict(float)  # Tokens of KV, by cell.
    rows_of: dict[int, int] = {0: 0}
    unfinished: dict[int, int] = {0: 0}
    rows = active = finished = taken = at = 0
    kv_tokens = now = settled_s = 0.0
    settling = 2 * (bound + 1)
    while taken < settling + _PUBLISHES:
        while finished < batch or _is_overdue(unfinished, taken, bound, batch):
            room = min(active_groups + batch - active, (bound + 1) * batch - active)
            room = min(room, (turns.slots - rows) // len(lasting[0]))
            for _ in range(room):
                if rows and kv_tokens > turns.kv_tokens:
                    break
                group = lasting[int(rng.random() * len(lasting))]
                for cells in group:
                    ending[at + cells, taken] += 1
                    freed[at + cells] += cells * cell
                finishing[at + max(group), taken] += 1
                freed[at + max(group)] += turns.prompt_tokens
                rows_of[taken] += len(group)
                unfinished[taken] += 1
                rows, active, kv_tokens = rows + len(group), active + 1, kv_tokens + turns.prompt_tokens
            if not rows:
                return float("inf")
            versions = sum(number > 0 for number in rows_of.values())
            kv_tokens += rows * cell
            now += cell * turns.cost.round_s(
                max(1.0, versions / turns.instances),
                rows / turns.instances,
                (kv_tokens - rows * cell / 2) / turns.instances,
            )
            at += 1
            kv_tokens -= freed.pop(at, 0.0)
            for version in rows_of:
                ended = ending.pop((at, version), 0)
                rows_of[version] -= ended
                rows -= ended
                for _ in range(finishing.pop((at, version), 0)):
                    unfinished[version] -= 1
                    passes = turns.pass_rate >= 1.0 or rng.random() < turns.pass_rate
                    finished += passes
                    active -= not passes
        finished, active, taken, now = finished - batch, active - batch, taken + 1, now + turns.pause_s
        rows_of = {version: number for version, number in rows_of.items() if number} | {taken: 0}
        unfinished = {version: number for version, number in unfinished.items() if number} | {taken: 0}
        if taken == settling:
            settled_s = now
    return (now - settled_s) / _PUBLISHES


def _is_overdue(unfinished: dict[int, int], taken: int, bound: int, batch: int) -> bool:
    """Whether groups are unfinished that could not make their deadline, were a batch taken now."""
    total = 0
    for version, number in unfinished.items():  # Oldest first.
        total += number
        if total > max(0, version + bound - taken) * batch:
            return True
    return False


class FreshLevel:
    """The smallest R whose interval is within a cost of the shortest, averaged over many looks.

    A look at a level compares it with R = B on the same draws, so neither chance nor what changes for all
    levels alike, as in the first steps of a run, decides. A level is kept until it costs too much, or a
    smaller one costs hardly anything.
    """

    def __init__(self) -> None:
        self._ratios: dict[int, Average] = {}
        """Interval of each level over that of R = B."""
        self._looks = 0
        self._named = 0

    def found(self, turns: DevicesInTurn, cost: float) -> int:
        """Look at some levels again, or at all where none was looked at, and name one."""
        levels = _levels(turns)
        if len(levels) == 1:
            return levels[0]
        at_batch_s = publish_interval_s(turns, levels[0], seed=self._looks)
        if at_batch_s == float("inf"):
            return levels[0]
        self._ratios.setdefault(levels[0], Average(1.0, weight=_LASTS)).observe(1.0)
        rest = levels[1:]
        new = [level for level in rest if level not in self._ratios]
        for level in new or dict.fromkeys(rest[(self._looks + i) % len(rest)] for i in range(_AT_ONCE)):
            ratio = publish_interval_s(turns, level, seed=self._looks) / at_batch_s
            self._ratios.setdefault(level, Average(ratio, weight=_LASTS)).observe(ratio)
        self._looks += _AT_ONCE
        least = min(self._ratios[level].value for level in levels)
        losses = {level: self._ratios[level].value / least - 1.0 for level in levels}
        is_kept = losses.get(self._named, cost + 1.0) <= _KEPT * cost
        allowed = cost / _KEPT if is_kept else cost
        found = next(level for level in levels if losses[level] <= allowed)
        self._named = min(found, self._named) if is_kept else found
        return self._named


def _levels(turns: DevicesInTurn) -> list[int]:
    """The levels that are looked at, smallest first."""
    most = turns.max_staleness + 1
    ratios = [*(ratio for ratio in _RATIOS if ratio <= most), *range(3, most + 1)]
    return sorted({round(ratio * turns.batch_groups) for ratio in ratios})
