"""The world: virtual time, simulated executors, and the control plane in the middle.

    events ──> inputs ──> ControlPlane ──> decisions ──> engines, trainer, environments
      ^                                                        │
      └────────────────────────────────────────────────────────┘

One heap of future events; control is told what happened and its decisions are carried out at once.
"""

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from dora_rl.control.plane import ControlPlane
from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input
from dora_rl.core.recipe import Recipe
from dora_rl.sim.engine import Engine, Request
from dora_rl.sim.trainer import Trainer
from dora_rl.sim.truth import Truth

Watcher = Callable[[Input, list[Decision]], None]


class Plan:
    """What the world knows of a trajectory's future."""

    __slots__ = ("attempt", "ends", "env_tokens", "journalled", "key", "turn")

    def __init__(self, key: tuple[int, int, int], attempt: int, ends: list[int]) -> None:
        self.key = key
        self.attempt = attempt
        self.ends = ends
        """Tokens after the prompt (environment tokens included) at which each turn ends."""
        self.turn = 0
        self.env_tokens = 0
        self.journalled = 0


class World:
    """Runs one set-up to its end."""

    def __init__(
        self, recipe: Recipe, plane: ControlPlane, engines: list[Engine], trainer: Trainer, truth: Truth
    ) -> None:
        self.recipe = recipe
        self.plane = plane
        self.engines = {engine.id: engine for engine in engines}
        self.trainer = trainer
        self.truth = truth
        self.now = 0.0
        self.publishes: list[float] = []
        self.train_spans: list[tuple[float, float]] = []
        self.tokens_trained: list[int] = []
        self.num_inputs = 0
        self.num_decisions = 0
        self.watchers: list[Watcher] = []
        self.on_revival: Callable[[Engine], None] = lambda engine: None
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._sequence = 0
        self._inbox: deque[Input] = deque()
        self._dirty: set[int] = set()
        self._plans: dict[int, Plan] = {}
        self._tokens: dict[int, int] = {}
        self._arriving: dict[int, tuple[do.Move, Request]] = {}
        self._early_resumes: dict[int, do.Resume] = {}
        self._outgoing: dict[int, float] = {}
        self._score_s = recipe.task.score_s
        self._carry_out: dict[type[Decision], Callable[[Any], None]] = {
            do.Start: self._start,
            do.Resume: self._resume,
            do.Move: self._move,
            do.Park: self._park,
            do.Abort: self._abort,
            do.Interrupt: self._interrupt,
            do.Load: self._load,
            do.Drop: self._drop,
            do.Lend: self._lend,
            do.GiveBack: self._give_back,
            do.Restart: self._restart,
            do.Hand: self._hand,
            do.Take: self._take,
            do.Close: self._close,
        }

    # --- the loop -------------------------------------------------------------------------------

    def run(self) -> None:
        """Join the fleet, then let events happen until control is done."""
        for engine in self.engines.values():
            self.tell(told.InstanceJoined(at=0.0, instance=engine.id, spec=engine.spec))
        self._tick(None)
        while not self.plane.is_done:
            self._check_progress()
            self.now, _, act, argument = heapq.heappop(self._events)
            act(argument)
            self._settle()

    def _check_progress(self) -> None:
        """A stuck pipeline is an error, not a hang: besides the timer something must be under way."""
        is_alive = len(self._events) > 1 or self.trainer.is_training
        assert is_alive, f"nothing will ever happen again: {self.plane.window}"

    def busy_share(self, total_s: float) -> float:
        """Share of the time in which instances decoded, over all that are there."""
        return sum(e.busy_s for e in self.engines.values()) / (max(1, len(self.engines)) * total_s)

    def tell(self, event: Input) -> None:
        self._inbox.append(event)

    def after(self, seconds: float, act: Callable[[Any], None], argument: Any = None) -> None:
        self.at(self.now + seconds, act, argument)

    def at(self, time: float, act: Callable[[Any], None], argument: Any = None) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, act, argument))

    def _settle(self) -> None:
        """Tell control everything that happened, do what it says, and schedule what follows from it."""
        while self._inbox:
            event = self._inbox.popleft()
            decisions = self.plane.handle(event)
            self.num_inputs += 1
            self.num_decisions += len(decisions)
            for watch in self.watchers:
                watch(event, decisions)
            for decision in decisions:
                act = self._carry_out.get(type(decision))
                if act is not None:
                    act(decision)
        for key in self._dirty:
            if (engine := self.engines.get(key)) is not None:
                self._schedule(engine)
        self._dirty.clear()

    def _schedule(self, engine: Engine) -> None:
        engine.epoch += 1
        time = engine.next_event()
        if time is not None:
            self._sequence += 1
            heapq.heappush(self._events, (time, self._sequence, self._wake, (engine, engine.epoch)))

    def _tick(self, _: None) -> None:
        period = self.recipe.control.rebalance_period_s
        for engine in self.engines.values():
            if engine.is_responsive and self.now - engine.last_told >= period:
                engine.advance(self.now)
                self._report(engine)
        self.tell(told.Tick(at=self.now))
        self._settle()
        self.after(period, self._tick)

    def _report(self, engine: Engine) -> None:
        engine.last_told = self.now
        self.tell(
            told.LoadReport(
                at=self.now, instance=engine.id, clock=engine.clock, kv_tokens=engine.claimed_kv, step_s=engine.step_s
            )
        )

    # --- engines --------------------------------------------------------------------------------

    def _wake(self, argument: tuple[Engine, int]) -> None:
        """A turn ended, or the KV ran full."""
        engine, epoch = argument
        if epoch != engine.epoch or self.engines.get(engine.id) is not engine:
            return
        engine.advance(self.now)
        self._dirty.add(engine.id)
        for request in engine.ended():
            self._turn_over(engine, request)
        if engine.is_pressed:
            self.tell(
                told.KvPressure(at=self.now, instance=engine.id, clock=engine.clock, kv_tokens=engine.claimed_kv)
            )
            self.at(self.now, self._relieve, engine)
        engine.refill_batch()

    def _relieve(self, engine: Engine) -> None:
        """Control was asked for help; whatever is still too much the engine parks itself."""
        if engine.is_pressed and self.engines.get(engine.id) is engine:
            engine.advance(self.now)
            engine.park_youngest()
            self._dirty.add(engine.id)

    def _turn_over(self, engine: Engine, request: Request) -> None:
        key = request.trajectory
        plan = self._plans[key]
        engine.last_told = self.now
        if plan.turn + 1 < len(plan.ends):
            self._ask_environment(engine, request, plan)
            return
        engine.release(key)
        tokens = int(request.until)
        self._tokens[key] = tokens + request.prompt_tokens
        self.tell(
            told.Ended(
                at=self.now,
                instance=engine.id,
                trajectory=key,
                tokens=tokens,
                clock=engine.clock,
                kv_tokens=engine.claimed_kv,
                truncated=self.truth.is_truncated(tokens),
            )
        )
        if self._score_s:
            self.after(self._score_s, self._score, key)
        else:
            self._score(key)

    def _score(self, key: int) -> None:
        group, member = divmod(key, self.recipe.batch.group_size)
        self._plans.pop(key, None)
        self.tell(told.Scored(at=self.now, trajectory=key, reward=self.truth.reward(group, member)))

    def _start(self, d: do.Start) -> None:
        engine = self.engines[d.instance]
        engine.advance(self.now)
        plan = self._plan(d)
        generated = min(d.generated_tokens, plan.journalled)
        while plan.turn + 1 < len(plan.ends) and plan.ends[plan.turn] <= generated:
            plan.turn += 1
        request = Request(
            trajectory=d.trajectory,
            group=d.group,
            version=d.version,
            prompt_tokens=d.prompt_tokens,
            tokens=float(min(generated, plan.ends[plan.turn] - 1)),
            until=float(plan.ends[plan.turn]),
        )
        engine.submit(request, prefill=True)
        self._dirty.add(engine.id)

    def _plan(self, d: do.Start) -> Plan:
        """A trajectory's future: kept when it continues, drawn again for another attempt."""
        plan = self._plans.get(d.trajectory)
        if plan is None or plan.attempt != d.attempt:
            key = (d.epoch, d.row, d.member)
            plan = Plan(key, d.attempt, self._turn_ends(d))
            self._plans[d.trajectory] = plan
        return plan

    def _turn_ends(self, d: do.Start) -> list[int]:
        total = self.truth.response_tokens(d.epoch, d.row, d.member, d.attempt)
        turns = min(self.truth.turns(d.trajectory, d.attempt), total)
        if turns == 1:
            return [total]
        extra = self.recipe.task.turns.environment_tokens
        return [total * (i + 1) // turns + i * extra for i in range(turns)]

    def _abort(self, d: do.Abort) -> None:
        self._arriving.pop(d.trajectory, None)
        engine = self.engines.get(d.instance)
        if engine is not None and d.trajectory in engine.requests:
            engine.advance(self.now)
            engine.release(d.trajectory)
            engine.refill_batch()
            self._dirty.add(engine.id)

    def _park(self, d: do.Park) -> None:
        engine = self.engines[d.instance]
        if d.trajectory in engine.requests:
            engine.park(d.trajectory)
            self._dirty.add(engine.id)

    # --- environments ---------------------------------------------------------------------------

    def _ask_environment(self, engine: Engine, request: Request, plan: Plan) -> None:
        key, turn = request.trajectory, plan.turn
        plan.turn += 1
        plan.journalled = int(request.until)
        self.tell(
            told.TurnEnded(
                at=self.now,
                instance=engine.id,
                trajectory=key,
                tokens=int(request.until),
                clock=engine.clock,
                kv_tokens=engine.claimed_kv,
            )
        )
        answer = self._fail if self.truth.environment_fails(key, turn, plan.attempt) else self._reply
        self.after(self.truth.latency_s(key, turn), answer, (key, plan))

    def _reply(self, argument: tuple[int, Plan]) -> None:
        key, plan = argument
        if self._plans.get(key) is plan:
            plan.journalled += self.recipe.task.turns.environment_tokens
            self.tell(
                told.EnvironmentReplied(
                    at=self.now, trajectory=key, tokens=self.recipe.task.turns.environment_tokens
                )
            )

    def _fail(self, argument: tuple[int, Plan]) -> None:
        key, plan = argument
        if self._plans.get(key) is plan:
            self.tell(told.EnvironmentFailed(at=self.now, trajectory=key, reason="simulated failure"))

    def _resume(self, d: do.Resume) -> None:
        engine = self.engines[d.instance]
        if d.trajectory in self._arriving:
            self._early_resumes[d.trajectory] = d
            return
        plan = self._plans[d.trajectory]
        engine.advance(self.now)
        engine.resume(d.trajectory, d.appended_tokens, float(plan.ends[plan.turn]))
        self._dirty.add(engine.id)

    # --- moving ---------------------------------------------------------------------------------

    def _move(self, d: do.Move) -> None:
        source, target = self.engines[d.source], self.engines[d.target]
        if d.trajectory not in source.requests:
            return
        source.advance(self.now)
        request = source.release(d.trajectory)
        source.refill_batch()
        self._dirty.add(source.id)
        tokens = request.tokens + request.prompt_tokens
        seconds, moved = 0.05, 0
        if d.with_kv:
            seconds = source.cost.move_s(tokens, same_node=source.spec.node == target.spec.node)
            moved = source.cost.kv_bytes(tokens)
        begin = max(self.now, self._outgoing.get(source.id, 0.0))
        self._outgoing[source.id] = begin + seconds
        self._arriving[d.trajectory] = (d, request)
        self.at(begin + seconds, self._arrive, (d, moved))

    def _arrive(self, argument: tuple[do.Move, int]) -> None:
        d, moved = argument
        move, request = self._arriving.get(d.trajectory, (None, None))
        if move is not d or request is None:
            return
        del self._arriving[d.trajectory]
        target = self.engines[d.target]
        target.advance(self.now)
        target.submit(request, prefill=not d.with_kv)
        self._dirty.add(target.id)
        self.tell(
            told.Moved(
                at=self.now, trajectory=d.trajectory, source=d.source, target=d.target, kv_bytes=moved
            )
        )
        if (early := self._early_resumes.pop(d.trajectory, None)) is not None:
            self._resume(early)

    # --- versions and devices -------------------------------------------------------------------

    def _load(self, d: do.Load) -> None:
        engine = self.engines[d.instance]
        engine.advance(self.now)
        engine.versions -= set(d.drop)
        apart = min((abs(d.version - v) for v in (*d.drop, *engine.versions)), default=1)
        wait = max(0.0, self._outgoing.get(engine.id, 0.0) - self.now)
        self.after(wait + engine.cost.load_s(apart), self._end_load, (engine, d.version))

    def _end_load(self, argument: tuple[Engine, int]) -> None:
        engine, version = argument
        if self.engines.get(engine.id) is engine:
            engine.advance(self.now)
            engine.versions.add(version)
            self._dirty.add(engine.id)
            self.tell(told.Loaded(at=self.now, instance=engine.id, version=version))

    def _drop(self, d: do.Drop) -> None:
        self.engines[d.instance].versions.discard(d.version)

    def _interrupt(self, d: do.Interrupt) -> None:
        engine = self.engines[d.instance]
        engine.advance(self.now)
        load_s = engine.cost.load_s(1) + (self.recipe.simulation.costs.switch_s if engine.is_paused else 0.0)
        engine.stall(load_s)
        self.after(load_s, self._end_interrupt, (engine, d.version))
        self._dirty.add(engine.id)

    def _end_interrupt(self, argument: tuple[Engine, int]) -> None:
        engine, version = argument
        if self.engines.get(engine.id) is engine:
            engine.advance(self.now)
            engine.interrupt(version)
            self._end_load(argument)

    def _lend(self, d: do.Lend) -> None:
        engine = self.engines[d.instance]
        engine.advance(self.now)
        engine.is_paused = True
        self.trainer.lent_gpus += engine.spec.gpus
        self._dirty.add(engine.id)
        self.tell(told.Lent(at=self.now, instance=engine.id))

    def _give_back(self, d: do.GiveBack) -> None:
        engine = self.engines[d.instance]
        self.trainer.lent_gpus -= engine.spec.gpus
        self.after(self.recipe.simulation.costs.switch_s, self._end_lending, engine)

    def _end_lending(self, engine: Engine) -> None:
        if self.engines.get(engine.id) is engine:
            engine.advance(self.now)
            engine.is_paused = False
            self._dirty.add(engine.id)
            self.tell(told.Returned(at=self.now, instance=engine.id))

    def _restart(self, d: do.Restart) -> None:
        engine = self.engines[d.instance]
        self.kill(d.instance)
        self.after(self.recipe.simulation.faults.restart_s, self.revive, engine)

    def kill(self, instance: int) -> None:
        """An instance dies; what was journalled of its requests survives."""
        engine = self.engines.pop(instance, None)
        if engine is None:
            return
        engine.advance(self.now)
        for key, request in engine.requests.items():
            self._journal(key, request.tokens_at(engine.clock))
        for key, (move, request) in list(self._arriving.items()):
            if instance in (move.source, move.target):
                self._journal(key, request.tokens)
                del self._arriving[key]
        if engine.is_paused:
            self.trainer.lent_gpus -= engine.spec.gpus

    def _journal(self, key: int, tokens: float) -> None:
        """All but the last tokens of an unfinished trajectory survive."""
        if (plan := self._plans.get(key)) is not None:
            lag = self.recipe.simulation.faults.journal_lag_tokens
            plan.journalled = max(plan.journalled, int(tokens) - lag)

    def revive(self, engine: Engine) -> None:
        """A restarted instance joins with the newest version."""
        if engine.id in self.engines:
            return
        version = self.plane.window.newest
        fresh = Engine(engine.id, engine.spec, engine.cost, version, self.now)
        self.engines[fresh.id] = fresh
        self.on_revival(fresh)
        self.tell(told.InstanceJoined(at=self.now, instance=fresh.id, spec=fresh.spec, version=version))

    # --- training -------------------------------------------------------------------------------

    def _hand(self, d: do.Hand) -> None:
        self.trainer.hand(d.group, self._group_tokens(d.group), self.now)

    def _take(self, d: do.Take) -> None:
        tokens_of = {group: self._group_tokens(group) for group in d.groups}
        trained, visible = self.trainer.begin(tokens_of, self.now)
        self._step = d.batch
        self.at(visible, self._publish, (d, self.now, trained, sum(tokens_of.values())))

    _step = -1

    def _publish(self, argument: tuple[do.Take, float, float, int]) -> None:
        take, began, trained, tokens = argument
        if not self.trainer.is_training or self._step != take.batch:
            return
        self.trainer.end()
        self.publishes.append(self.now)
        self.train_spans.append((began, self.now))
        self.tokens_trained.append(tokens)
        for group in take.groups:
            self._forget_tokens(group)
        self.tell(told.Published(at=self.now, version=take.batch + 1, train_s=self.now - began))

    def lose_step(self) -> None:
        """The trainer dies in mid-step and comes back without it."""
        if self.trainer.is_training:
            self.trainer.lose()
            self._step = -1
            self.tell(told.StepLost(at=self.now, reason="simulated failure"))

    def _close(self, d: do.Close) -> None:
        for key in d.members:
            self._plans.pop(key, None)
            self._tokens.pop(key, None)

    def _group_tokens(self, group: int) -> int:
        size = self.recipe.batch.group_size
        get = self._tokens.get
        return sum(get(key, 0) for key in range(group * size, (group + 1) * size))

    def _forget_tokens(self, group: int) -> None:
        size = self.recipe.batch.group_size
        for key in range(group * size, (group + 1) * size):
            self._tokens.pop(key, None)
