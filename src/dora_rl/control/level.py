"""The level of R: what a number of active groups would give, by a fluid model of one run.

Groups flow in where R, the window and free rows allow, finish after learned durations, and flow out in
batches of B, each of which the trainer holds for `train_s`. Nothing in it is random and nothing is searched
by trial in the run itself: throughput is not concave in R (where lengths are capped, 1.25 B to 1.75 B can be
as slow as B, and 2 B twice as fast), so a controller that climbs would stop half-way.
"""

from bisect import bisect_right
from operator import mul

from dora_rl.control.round_cost import RoundCost
from dora_rl.core.record import Record

_CELLS = 16
"""Time steps in which one train step is resolved, unless groups take far longer."""
_MOST_CELLS = 160
"""Most time steps of the longest group."""

_ALL = 0.69
"""Expected number of unfinished groups at which as likely as not none is left."""


class Flow(Record, frozen=True):
    """What the model needs to know of a run, in seconds, groups and rows."""

    batch_groups: int
    group_size: int
    max_staleness: int
    train_s: float
    group_s: list[float]
    """Durations of groups in equal parts, shortest first."""
    member_s: list[float]
    """Seconds from a group's start to a member's end, in equal parts, shortest first."""
    rows: float
    """Trajectories that can be generated at once."""
    instances: int = 1
    pass_rate: float = 1.0
    halts: bool = False
    """Whether nothing generates while a step trains."""
    round_cost: RoundCost | None = None
    """How versions and rows slow decoding down; None: not at all."""

    def drag(self, versions: int, rows: float) -> float:
        """How much longer than seen of late everything takes, with so many versions and rows in all."""
        if self.round_cost is None:
            return 1.0
        return self.round_cost.drag(max(1.0, versions / self.instances), rows / self.instances)


def publish_interval_s(flow: Flow, active_groups: float) -> float:
    """Predicted seconds from one publish to the next with this target R, once the run has settled."""
    longest = max(flow.group_s[-1], flow.member_s[-1])
    cell_s = max(flow.train_s / _CELLS, longest / _MOST_CELLS, 1e-6)
    num_cells = int(longest / cell_s) + 2
    finished_by = [bisect_right(flow.group_s, i * cell_s) / len(flow.group_s) for i in range(num_cells)]
    finishing = [b - a for a, b in zip([0.0, *finished_by], finished_by, strict=False)]
    running = [1.0 - bisect_right(flow.member_s, i * cell_s) / len(flow.member_s) for i in range(num_cells)]
    unfinished = [1.0 - share for share in finished_by]

    batch, bound = flow.batch_groups, flow.max_staleness
    num_intervals = 3 * (bound + 1) + 4
    admitted: list[float] = []  # Groups, newest cell first.
    begins: list[int] = [0]  # The cell in which each version was published, counted from the first.
    active = finished = now = 0.0
    taken, ends_at, idle_since = 0, -1.0, 0.0
    published: list[float] = []
    for _ in range(num_intervals * 4 * num_cells):
        is_training = ends_at >= 0.0
        if is_training and flow.halts:
            now = ends_at
        else:
            by_version = [flow.group_size * groups for groups in _running(admitted, running, begins)]
            rows = sum(by_version)
            # While the trainer is idle, the batch that it takes next does not count against R.
            leaving = 0 if is_training else batch
            room = min(active_groups + leaving - active, (flow.rows - rows) / flow.group_size)
            room = max(0.0, min(room, (len(published) + bound - taken + 1) * batch - active))
            admitted.insert(0, room)
            active += room
            ending = sum(map(mul, admitted, finishing))
            finished += ending * flow.pass_rate
            active -= ending * (1.0 - flow.pass_rate)
            versions = sum(rows_of >= 1.0 for rows_of in by_version[1:]) + 1
            now += cell_s * flow.drag(versions, rows + flow.group_size * room)
        if is_training and now >= ends_at:
            published.append(ends_at)
            if len(published) == num_intervals:
                break
            begins.append(len(admitted))
            idle_since, ends_at = ends_at, -1.0
        if ends_at < 0.0 and finished >= batch - 1e-6:
            # The oldest version with a batch left after this one: all before it must be finished.
            first_open = max(0, taken - bound + 1)
            older = len(admitted) - (begins[first_open] if first_open < len(begins) else 0)
            if sum(map(mul, admitted[older:], unfinished[older:])) < _ALL:
                begins_at = now if now - idle_since > cell_s else idle_since
                finished, active, taken, ends_at = (
                    finished - batch,
                    active - batch,
                    taken + 1,
                    begins_at + flow.train_s,
                )
    half = len(published) // 2
    if half == 0 or len(published) < num_intervals:
        return float("inf")
    return (published[-1] - published[half]) / (len(published) - 1 - half)


def _running(admitted: list[float], running: list[float], begins: list[int]) -> list[float]:
    """Groups' worth of members that run, by version, the newest first."""
    total, found = len(admitted), []
    newer = 0
    for begin in reversed(begins):
        if newer >= len(running):
            break
        older = total - begin
        found.append(sum(map(mul, admitted[newer:older], running[newer:older])))
        newer = older
    return found or [0.0]


def fresh_level(flow: Flow, cost: float) -> int:
    """The smallest R whose predicted interval is within `cost` of the shortest any R gives."""
    batch = flow.batch_groups
    most = (flow.max_staleness + 1) * batch
    step = max(1, batch // 16)
    tried = {batch * quarters // 4 for quarters in (4, 5, 6, 8)} | {most, most // 2}
    fastest = min(publish_interval_s(flow, level) for level in tried if batch <= level <= most)
    enough = fastest * (1.0 + cost)
    level = batch
    while level < most and publish_interval_s(flow, level) > enough:
        level += step
    # Between the last that was too slow and the first that is not, halving.
    too_slow = level - step
    while level > batch and level - too_slow > max(1, batch // 128):
        middle = (too_slow + level) // 2
        if publish_interval_s(flow, middle) > enough:
            too_slow = middle
        else:
            level = middle
    return min(level, most)
