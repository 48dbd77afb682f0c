"""A simulated instance: continuous batching in closed form.

Every running request gains one token a decode step, so one clock serves them all and a request ends
when the clock reaches a known value. A step takes max(floor, pass + kv * read) + overhead, where the
KV grows linearly with the clock: the time for k steps, and the steps in a time, have closed forms.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from math import sqrt
from typing import Literal, get_args

from msgspec import Struct

from dora_rl.core.instance_seconds import InstanceSeconds
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.costs.rollout import RolloutCost

_PRESSURE = 0.97
"""Share of the KV in use at which an instance reports pressure."""
_RESUME = 0.94
"""Share of the KV in use up to which parked requests come back."""


StallKind = Literal["prefill_s", "recompute_s", "kv_moves_s", "weight_loads_s"]
"""A reason why nothing decodes, by the field of InstanceSeconds that counts it."""


class SimulatedRequest(Struct, gc=False):
    """One request on a simulated instance, with the tokens it has and will have."""

    trajectory: int
    group: int
    version: int
    prompt_tokens: int
    tokens: float
    """Tokens after the prompt when the request last joined the batch."""
    until: float
    """Tokens after the prompt at which the request's present turn ends."""
    joined: float = 0.0
    """Decode clock of the instance when the request joined the batch."""
    is_running: bool = False

    def tokens_at(self, clock: float) -> float:
        """Tokens after the prompt when the decode clock is at `clock`."""
        return self.tokens + (clock - self.joined) if self.is_running else self.tokens


class RememberedCost:
    """A cost model with a cache: few sizes of batches and prompts come up, again and again."""

    def __init__(self, cost: RolloutCost) -> None:
        self._cost = cost
        self.kv_read_s = cost.kv_read_s
        self.prefill_s = lru_cache(maxsize=4096)(cost.prefill_s)
        self.step = lru_cache(maxsize=4096)(self._step)

    def _step(self, running: int, cohorts: int) -> tuple[float, float, float, float]:
        """(floor, seconds without KV, growth a step, overhead) of a decode step in so many cohorts."""
        cost = self._cost
        passes = cohorts * cost.pass_s(running / cohorts)
        return cost.floor_s(cohorts), passes, running * self.kv_read_s, cost.overhead_s(cohorts)


@lru_cache(maxsize=16)
def remembered(cost: RolloutCost) -> RememberedCost:
    """The cached cost model that all instances of one kind share."""
    return RememberedCost(cost)


class SimulatedEngine:
    """One instance of the simulated fleet: its requests, its KV and its decode clock."""

    __slots__ = (
        "_cost",
        "_ends",
        "_groups",
        "_parked",
        "_parked_tokens",
        "_pressure_kv",
        "_queue",
        "_resting",
        "_slowness",
        "_stalled_s",
        "_stalled_until",
        "born",
        "busy_s",
        "clock",
        "cohorts",
        "cost",
        "epoch",
        "id",
        "is_paused",
        "is_responsive",
        "kv",
        "kv_capacity",
        "last_reported",
        "lent_s",
        "now",
        "num_running",
        "requests",
        "spec",
        "versions",
    )  # fmt: skip

    def __init__(
        self, instance: int, spec: InstanceSpec, cost: RolloutCost, version: int, now: float
    ) -> None:
        self.id = instance
        self.spec = spec
        self.cost = cost
        self._cost = remembered(cost)
        self.versions: frozenset[int] = frozenset()
        self.hold((version,))
        self.requests: dict[int, SimulatedRequest] = {}
        self.cohorts: dict[int, int] = {}
        self.clock = 0.0
        self.kv = 0.0
        self.now = now
        self.epoch = 0
        self.busy_s = 0.0
        self.born = now
        self.lent_s = 0.0
        self.is_paused = False
        self.is_responsive = True
        self.num_running = 0
        self.last_reported = now
        self._slowness = 1.0
        self._stalled_until = now
        self._stalled_s: dict[StallKind, float] = dict.fromkeys(get_args(StallKind), 0.0)
        self._ends: list[tuple[float, int]] = []
        """(-clock, -trajectory) of every end to come, the next one last."""
        self._queue: deque[int] = deque()
        self._parked: deque[int] = deque()
        self._parked_tokens = 0.0
        self._resting: set[int] = set()
        """Requests between turns whose KV is in host memory until they are resumed."""
        self._groups: dict[int, int] = {}

    def slow_down(self, factor: float) -> None:
        self._slowness = factor

    # --- time -----------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Decode up to the time `now`."""
        begin = self.now if self.now > self._stalled_until else self._stalled_until
        self.now = now
        if now <= begin or self.is_paused or not self.num_running:
            return
        steps = self._steps_in(now - begin)
        self.clock += steps
        self.kv += steps * self.num_running
        self.busy_s += now - begin

    def next_event(self) -> float | None:
        """Time at which a turn ends or the KV runs full, if nothing else happens; None if nothing decodes."""
        if self.is_paused or not self.num_running:
            return None
        steps = self._first_end() - self.clock
        room = self._pressure_kv - self.kv
        if room > 0 and steps > room / self.num_running + 1e-6:
            steps = room / self.num_running + 1e-6
        begin = self.now if self.now > self._stalled_until else self._stalled_until
        return begin + self._time_for(steps if steps > 0.0 else 0.0)

    def ended(self) -> list[SimulatedRequest]:
        """Requests whose turn is over by now, taken out of the batch (their KV stays until released)."""
        done = []
        ends, clock = self._ends, self.clock
        while ends and -ends[-1][0] <= clock + 1e-6:
            _, key = ends.pop()
            request = self.requests.get(-key)
            if request is None or not request.is_running:
                continue
            if request.until <= request.tokens_at(clock) + 1e-3:
                self._leave_batch(request)
                request.tokens = request.until
                done.append(request)
        return done

    @property
    def step_s(self) -> float:
        """Seconds of the next decode step."""
        floor, passes, _, overhead = self._cost.step(max(1, self.num_running), max(1, len(self.cohorts)))
        return (max(floor, passes + self.kv * self._cost.kv_read_s) + overhead) * self._slowness

    @property
    def seconds(self) -> InstanceSeconds:
        """The seconds since the instance joined for which something else held decoding up."""
        return InstanceSeconds(**self._stalled_s, pass_rows=self._pass_rows())

    @property
    def is_pressed(self) -> bool:
        return self.kv >= self._pressure_kv - 1e-3

    @property
    def claimed_kv(self) -> int:
        """Tokens of KV in use, and those that parked requests need to come back."""
        return int(self.kv + self._parked_tokens)

    # --- requests -------------------------------------------------------------------------------

    def submit(self, request: SimulatedRequest, *, prefill: bool) -> None:
        """Take a request, which decodes as soon as there is room, unless its environment has the turn.

        `prefill`: its KV must be computed here.
        """
        self.requests[request.trajectory] = request
        if not prefill and self._finds_no_kv(request):
            # What is moved here waits in host memory then, as in the native engine.
            self._parked.append(request.trajectory)
            self._parked_tokens += request.tokens + request.prompt_tokens
            return
        first = self._hold_prompt(request)
        self.kv += request.tokens
        if prefill:
            # Tokens that exist already were computed elsewhere, or here before.
            kind: StallKind = "recompute_s" if request.tokens else "prefill_s"
            self.stall(self._cost.prefill_s(request.tokens + (request.prompt_tokens if first else 0)), kind)
        if request.tokens < request.until:
            self._queue.append(request.trajectory)
            self.refill_batch()

    def resume(self, trajectory: int, appended_tokens: int, until: float) -> None:
        """Append environment tokens to a request whose KV is here, and go on."""
        request = self.requests[trajectory]
        if trajectory in self._resting:
            self._resting.remove(trajectory)
            self._hold_prompt(request)
            self.kv += request.tokens
            self.stall(self.cost.host_s(request.tokens + request.prompt_tokens), "kv_moves_s")
        request.tokens += appended_tokens
        request.until = until
        self.kv += appended_tokens
        self.stall(self._cost.prefill_s(appended_tokens), "prefill_s")
        self._queue.append(trajectory)
        self.refill_batch()

    def release(self, trajectory: int) -> SimulatedRequest:
        """Forget a request and free its KV."""
        request = self.requests.pop(trajectory)
        if request.is_running:
            self._leave_batch(request)
        if self._parked and trajectory in self._parked:
            self._parked.remove(trajectory)
            self._parked_tokens -= request.tokens + request.prompt_tokens
        elif trajectory in self._resting:
            self._resting.remove(trajectory)
        else:
            self.kv -= request.tokens
            self._free_prompt(request)
        return request

    def park(self, trajectory: int) -> None:
        """Take a request's KV to host memory: until there is room if it runs, else until it is resumed."""
        request = self.requests[trajectory]
        is_kept = trajectory not in self._resting and trajectory not in self._parked
        if not request.is_running and request.tokens >= request.until and is_kept:
            self.kv -= request.tokens
            self._free_prompt(request)
            self.stall(self.cost.host_s(request.tokens + request.prompt_tokens), "kv_moves_s")
            self._resting.add(trajectory)
            return
        if request.is_running:
            self._leave_batch(request)
            self.kv -= request.tokens
            self._free_prompt(request)
            self.stall(self.cost.host_s(request.tokens + request.prompt_tokens), "kv_moves_s")
            self._parked.append(trajectory)
            self._parked_tokens += request.tokens + request.prompt_tokens

    def park_youngest(self) -> None:
        """Make room, when control did not, by parking the requests that lose least."""
        running = [request for request in self.requests.values() if request.is_running]
        for request in sorted(running, key=lambda r: r.tokens_at(self.clock))[:-1]:
            if self.kv < 0.95 * _PRESSURE * self.kv_capacity:
                return
            self.park(request.trajectory)

    def refill_batch(self) -> None:
        """Let parked requests come back, then waiting ones join, while there is room."""
        while self._parked and self.num_running < self.spec.slots:
            request = self.requests[self._parked[0]]
            if self._finds_no_kv(request):
                break
            self._parked.popleft()
            self._parked_tokens -= request.tokens + request.prompt_tokens
            self._hold_prompt(request)
            self.kv += request.tokens
            self.stall(self.cost.host_s(request.tokens + request.prompt_tokens), "kv_moves_s")
            self._join_batch(request)
        while self._queue and self.num_running < self.spec.slots:
            request = self.requests.get(self._queue[0])  # type: ignore[assignment]
            if request is not None and self.num_running and self.kv > self._pressure_kv:
                break
            self._queue.popleft()
            if request is not None and self._waits_for_slot(request):
                self._join_batch(request)

    def _finds_no_kv(self, request: SimulatedRequest) -> bool:
        """Whether a request that is to decode has to wait until others free their KV."""
        is_full = self.kv + request.tokens > _RESUME * self.kv_capacity
        return is_full and self.num_running > 0 and request.tokens < request.until

    def _waits_for_slot(self, request: SimulatedRequest) -> bool:
        """Whether a queue entry is up to date: its request may have left and come back."""
        is_parked = self._parked and request.trajectory in self._parked
        return not request.is_running and request.tokens < request.until and not is_parked

    # --- weights and devices --------------------------------------------------------------------

    def stall(self, seconds: float, kind: StallKind) -> None:
        """Let nothing decode for so many seconds."""
        self._stalled_s[kind] += seconds
        begin = self.now if self.now > self._stalled_until else self._stalled_until
        self._stalled_until = begin + seconds

    def hold(self, versions: Iterable[int]) -> None:
        """Make exactly these versions resident; KV gets the memory they leave."""
        self.versions = frozenset(versions)
        self.kv_capacity = self.spec.kv_capacity(len(self.versions))
        self._pressure_kv = _PRESSURE * self.kv_capacity

    def interrupt(self, version: int) -> None:
        """Drop all KV and compute it again under `version`."""
        self.hold((version,))
        self.cohorts = {version: self.num_running} if self.num_running else {}
        total = 0.0
        for request in self.requests.values():
            request.version = version
            total += request.tokens_at(self.clock)
        self.stall(self._cost.prefill_s(total + sum(self._prompts().values())), "recompute_s")

    def _pass_rows(self) -> float:
        """Number of requests whose decoding takes as long as a version's pass by itself."""
        rows = max(2, self.num_running)
        floor, one, _, overhead = self._cost.step(1, 1)
        _, all_rows, _, _ = self._cost.step(rows, 1)
        row_s = (all_rows - one) / (rows - 1) + self.kv / rows * self._cost.kv_read_s
        return (max(floor, one) + overhead) / row_s if row_s else 0.0

    # --- inside ---------------------------------------------------------------------------------

    def _join_batch(self, request: SimulatedRequest) -> None:
        request.joined, request.is_running = self.clock, True
        insort(self._ends, (-(self.clock + request.until - request.tokens), -request.trajectory))
        self.num_running += 1
        self.cohorts[request.version] = self.cohorts.get(request.version, 0) + 1

    def _leave_batch(self, request: SimulatedRequest) -> None:
        request.tokens = request.tokens_at(self.clock)
        request.is_running = False
        self.num_running -= 1
        left = self.cohorts[request.version] - 1
        if left:
            self.cohorts[request.version] = left
        else:
            del self.cohorts[request.version]

    def _hold_prompt(self, request: SimulatedRequest) -> bool:
        """Count a prompt once for its group on this instance; True for the group's first member here."""
        holders = self._groups.get(request.group, 0)
        self._groups[request.group] = holders + 1
        if not holders:
            self.kv += request.prompt_tokens
        return not holders

    def _free_prompt(self, request: SimulatedRequest) -> None:
        left = self._groups[request.group] - 1
        if left:
            self._groups[request.group] = left
        else:
            del self._groups[request.group]
            self.kv -= request.prompt_tokens

    def _prompts(self) -> dict[int, int]:
        return {request.group: request.prompt_tokens for request in self.requests.values()}

    def _first_end(self) -> float:
        """Decode clock of the next end; entries of requests that left are dropped on the way."""
        while True:
            end, key = self._ends[-1]
            request = self.requests.get(-key)
            if request is not None and request.is_running and abs(self._end_of(request) + end) < 1e-3:
                return -end
            self._ends.pop()

    def _end_of(self, request: SimulatedRequest) -> float:
        return request.joined + request.until - request.tokens

    def _rates(self) -> tuple[float, float, float, float]:
        """(floor, device seconds of the first step, its growth a step, overhead), slowness applied."""
        floor, passes, growth, overhead = self._cost.step(self.num_running, len(self.cohorts))
        first, slow = passes + self.kv * self._cost.kv_read_s, self._slowness
        return slow * floor, slow * first, slow * growth, slow * overhead

    def _time_for(self, steps: float) -> float:
        floor, first, growth, overhead = self._rates()
        if first >= floor:
            return steps * first + growth * steps * steps / 2 + steps * overhead
        flat = min(steps, (floor - first) / growth)
        rest = steps - flat
        return flat * floor + rest * floor + growth * rest * rest / 2 + steps * overhead

    def _steps_in(self, seconds: float) -> float:
        floor, first, growth, overhead = self._rates()
        flat = (floor - first) / growth if floor > first else 0.0
        flat_s = flat * (floor + overhead)
        if seconds <= flat_s:
            return seconds / (floor + overhead)
        rate, left = (floor if floor > first else first) + overhead, seconds - flat_s
        return flat + (sqrt(rate * rate + 2 * growth * left) - rate) / growth
