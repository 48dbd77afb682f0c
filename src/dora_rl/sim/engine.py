"""A simulated instance: continuous batching in closed form.

Every running request gains one token a decode step, so one clock serves them all and a request ends
when the clock reaches a known value. A step takes max(floor, pass + kv * read) + overhead, where the
KV grows linearly with the clock: the time for k steps, and the steps in a time, have closed forms.
"""

import heapq
from collections import deque
from math import sqrt

from msgspec import Struct

from dora_rl.core.fleet import InstanceSpec
from dora_rl.costs.rollout import RolloutCost

_PRESSURE = 0.97
"""Share of the KV in use at which the instance asks for help."""
_RESUME = 0.94
"""Share of the KV in use up to which parked requests come back."""


class Request(Struct, gc=False):
    """One request as the instance sees it."""

    trajectory: int
    group: int
    version: int
    prompt_tokens: int
    tokens: float
    """Tokens after the prompt when it last joined the batch."""
    until: float
    """Tokens after the prompt at which this turn ends."""
    joined: float = 0.0
    """The clock when it joined the batch."""
    is_running: bool = False

    def tokens_at(self, clock: float) -> float:
        return self.tokens + (clock - self.joined) if self.is_running else self.tokens


class Engine:
    """One instance of the simulated fleet."""

    __slots__ = ("_ends", "_groups", "_last_version", "_parked", "_parked_tokens", "_queue", "_slowness", "busy_s", "clock",
                 "cost", "epoch", "id", "kv", "last_told", "lanes", "num_running", "is_paused",
                 "is_responsive", "requests", "spec",
                 "now", "_stalled_until", "_base", "_step", "versions")  # fmt: skip

    def __init__(self, instance: int, spec: InstanceSpec, cost: RolloutCost, version: int, now: float) -> None:
        self.id = instance
        self.spec = spec
        self.cost = cost
        self.versions = {version}
        self.requests: dict[int, Request] = {}
        self.lanes: dict[int, int] = {}
        self.clock = 0.0
        self.kv = 0.0
        self.now = now
        self.epoch = 0
        self.busy_s = 0.0
        self.is_paused = False
        self.is_responsive = True
        self.num_running = 0
        self.last_told = now
        self._slowness = 1.0
        self._stalled_until = now
        self._ends: list[tuple[float, int]] = []
        self._queue: deque[int] = deque()
        self._parked: deque[int] = deque()
        self._parked_tokens = 0.0
        self._groups: dict[int, int] = {}

    def slow_down(self, factor: float) -> None:
        self._slowness = factor

    # --- time -----------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Let time pass up to `now`."""
        begin = max(self.now, self._stalled_until)
        self.now = now
        if now <= begin or self.is_paused or not self.num_running:
            return
        steps = self._steps_in(now - begin)
        self.clock += steps
        self.kv += steps * self.num_running
        self.busy_s += now - begin

    def next_event(self) -> float | None:
        """When something will happen by itself: a turn ends or the KV runs full."""
        if self.is_paused or not self.num_running:
            return None
        steps = max(0.0, self._first_end() - self.clock)
        room = _PRESSURE * self.kv_capacity - self.kv
        if room > 0:
            steps = min(steps, room / self.num_running + 1e-6)
        return max(self.now, self._stalled_until) + self._time_for(steps)

    def ended(self) -> list[Request]:
        """Requests whose turn is over by now, taken out of the batch (their KV stays until released)."""
        done = []
        while self._ends and self._ends[0][0] <= self.clock + 1e-6:
            _, key = heapq.heappop(self._ends)
            request = self.requests.get(key)
            if request is not None and request.is_running and request.until <= request.tokens_at(self.clock) + 1e-3:
                self._leave_batch(request)
                request.tokens = request.until
                done.append(request)
        return done

    @property
    def step_s(self) -> float:
        """Seconds of the next decode step."""
        return self.cost.step_s(max(1, self.num_running), self.kv, max(1, len(self.lanes))) * self._slowness

    @property
    def is_pressed(self) -> bool:
        return self.kv >= _PRESSURE * self.kv_capacity - 1e-3

    @property
    def claimed_kv(self) -> int:
        """KV in use, and what parked requests need to come back: nobody else may take that."""
        return int(self.kv + self._parked_tokens)

    @property
    def kv_capacity(self) -> int:
        return self.spec.kv_capacity(len(self.versions))

    # --- requests -------------------------------------------------------------------------------

    def submit(self, request: Request, *, prefill: bool) -> None:
        """Take a request; it decodes as soon as there is room, unless its environment has the turn.

        `prefill`: its KV must be computed here.
        """
        self.requests[request.trajectory] = request
        first = self._hold_prompt(request)
        self.kv += request.tokens
        if prefill:
            self.stall(self.cost.prefill_s(request.tokens + (request.prompt_tokens if first else 0)))
        if request.tokens < request.until:
            self._queue.append(request.trajectory)
            self.refill_batch()

    def resume(self, trajectory: int, appended_tokens: int, until: float) -> None:
        """Append environment tokens to a request whose KV is here, and go on."""
        request = self.requests[trajectory]
        request.tokens += appended_tokens
        request.until = until
        self.kv += appended_tokens
        self.stall(self.cost.prefill_s(appended_tokens))
        self._queue.append(trajectory)
        self.refill_batch()

    def release(self, trajectory: int) -> Request:
        """Forget a request and free its KV."""
        request = self.requests.pop(trajectory)
        if request.is_running:
            self._leave_batch(request)
        if trajectory in self._parked:
            self._parked.remove(trajectory)
            self._parked_tokens -= request.tokens + request.prompt_tokens
        else:
            self.kv -= request.tokens
            self._free_prompt(request)
        return request

    def park(self, trajectory: int) -> None:
        """Take a running request's KV to host memory."""
        request = self.requests[trajectory]
        if request.is_running:
            self._leave_batch(request)
            self.kv -= request.tokens
            self._free_prompt(request)
            self.stall(self.cost.host_s(request.tokens + request.prompt_tokens))
            self._parked.append(trajectory)
            self._parked_tokens += request.tokens + request.prompt_tokens

    def park_youngest(self) -> None:
        """Nobody helped: make room by taking away those that lose least."""
        running = sorted((r for r in self.requests.values() if r.is_running), key=lambda r: r.tokens_at(self.clock))
        for request in running[:-1]:
            if self.kv < 0.95 * _PRESSURE * self.kv_capacity:
                return
            self.park(request.trajectory)

    def refill_batch(self) -> None:
        """Parked requests come back first, then waiting ones join, while there is room."""
        while self._parked and self.num_running < self.spec.slots:
            request = self.requests[self._parked[0]]
            if self.num_running and self.kv + request.tokens > _RESUME * self.kv_capacity:
                break
            self._parked.popleft()
            self._parked_tokens -= request.tokens + request.prompt_tokens
            self._hold_prompt(request)
            self.kv += request.tokens
            self.stall(self.cost.host_s(request.tokens + request.prompt_tokens))
            self._join_batch(request)
        while self._queue and self.num_running < self.spec.slots:
            request = self.requests.get(self._queue[0])  # type: ignore[assignment]
            if request is not None and self.num_running and self.kv > _PRESSURE * self.kv_capacity:
                break
            self._queue.popleft()
            if request is not None and not request.is_running:
                self._join_batch(request)

    # --- weights and devices --------------------------------------------------------------------

    def stall(self, seconds: float) -> None:
        """Nothing decodes for so long."""
        self._stalled_until = max(self._stalled_until, self.now) + seconds

    def interrupt(self, version: int) -> None:
        """Drop all KV and compute it again under other weights."""
        self.versions = {version}
        self.lanes = {version: self.num_running} if self.num_running else {}
        total = 0.0
        for request in self.requests.values():
            request.version = version
            total += request.tokens_at(self.clock)
        self.stall(self.cost.prefill_s(total + sum(self._prompts().values())))

    # --- inside ---------------------------------------------------------------------------------

    def _join_batch(self, request: Request) -> None:
        request.joined, request.is_running = self.clock, True
        heapq.heappush(self._ends, (self.clock + request.until - request.tokens, request.trajectory))
        self.num_running += 1
        self.lanes[request.version] = self.lanes.get(request.version, 0) + 1

    def _leave_batch(self, request: Request) -> None:
        request.tokens = request.tokens_at(self.clock)
        request.is_running = False
        self.num_running -= 1
        left = self.lanes[request.version] - 1
        if left:
            self.lanes[request.version] = left
        else:
            del self.lanes[request.version]

    def _hold_prompt(self, request: Request) -> bool:
        """A group's prompt is kept once on an instance. True for its first member here."""
        holders = self._groups.get(request.group, 0)
        self._groups[request.group] = holders + 1
        if not holders:
            self.kv += request.prompt_tokens
        return not holders

    def _free_prompt(self, request: Request) -> None:
        left = self._groups[request.group] - 1
        if left:
            self._groups[request.group] = left
        else:
            del self._groups[request.group]
            self.kv -= request.prompt_tokens

    def _prompts(self) -> dict[int, int]:
        return {request.group: request.prompt_tokens for request in self.requests.values()}

    def _first_end(self) -> float:
        """Clock of the next end; entries of requests that left are dropped on the way."""
        while True:
            end, key = self._ends[0]
            request = self.requests.get(key)
            if request is not None and request.is_running and abs(self._end_of(request) - end) < 1e-3:
                return end
            heapq.heappop(self._ends)

    def _end_of(self, request: Request) -> float:
        return request.joined + request.until - request.tokens

    def _rates(self) -> tuple[float, float, float, float]:
        """(floor, device seconds of the first step, its growth a step, overhead), slowness applied."""
        lanes = len(self.lanes)
        cost, slow = self.cost, self._slowness
        first = lanes * cost.pass_s(self.num_running / lanes) + self.kv * cost.kv_read_s
        growth = self.num_running * cost.kv_read_s
        return slow * cost.floor_s(lanes), slow * first, slow * growth, slow * cost.overhead_s(lanes)

    def _time_for(self, steps: float) -> float:
        floor, first, growth, overhead = self._rates()
        flat = min(steps, max(0.0, (floor - first) / growth)) if growth else steps
        rest = steps - flat
        begin = max(floor, first)
        return flat * floor + rest * begin + growth * rest * rest / 2 + steps * overhead

    def _steps_in(self, seconds: float) -> float:
        floor, first, growth, overhead = self._rates()
        flat = max(0.0, (floor - first) / growth)
        flat_s = flat * (floor + overhead)
        if seconds <= flat_s:
            return seconds / (floor + overhead)
        rate, left = max(floor, first) + overhead, seconds - flat_s
        return flat + (sqrt(rate * rate + 2 * growth * left) - rate) / growth
