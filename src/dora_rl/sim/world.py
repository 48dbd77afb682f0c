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
from dora_rl.core.history import Watcher
from dora_rl.core.inputs import Input
from dora_rl.core.instance_seconds import InstanceSeconds
from dora_rl.core.recipe import Recipe
from dora_rl.sim.feed import SimulatedPromptFeed
from dora_rl.sim.futures import Futures
from dora_rl.sim.simulated_engine import SimulatedEngine, SimulatedRequest
from dora_rl.sim.simulated_environments import SimulatedEnvironments
from dora_rl.sim.simulated_trainer import SimulatedTrainer
from dora_rl.sim.truth import Truth

_PATIENCE_S = 1e5
"""Seconds of virtual time without progress after which a run is stuck."""


class World:
    """The simulated world: runs one set-up to its end under virtual time."""

    def __init__(
        self,
        recipe: Recipe,
        plane: ControlPlane,
        engines: list[SimulatedEngine],
        trainer: SimulatedTrainer,
        futures: Futures,
        truth: Truth,
        feed: SimulatedPromptFeed,
    ) -> None:
        self.recipe = recipe
        self.plane = plane
        self.engines = {engine.id: engine for engine in engines}
        self.trainer = trainer
        self.truth = truth
        self.feed = feed
        self.now = 0.0
        self._progress = (0, 0, 0, 0)
        self._progress_at = 0.0
        self.publishes: list[float] = []
        self.train_spans: list[tuple[float, float]] = []
        self.tokens_trained: list[int] = []
        self.num_inputs = 0
        self.num_decisions = 0
        self.watchers: list[Watcher] = []
        self.on_revival: Callable[[SimulatedEngine], None] = lambda engine: None
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._sequence = 0
        self._inbox: deque[Input] = deque()
        self._dirty: set[int] = set()
        self._futures = futures
        self._arriving: dict[int, tuple[do.Move, SimulatedRequest]] = {}
        self._early_resumes: dict[int, do.Resume] = {}
        self._outgoing: dict[int, float] = {}
        self._step: do.Take | None = None
        self._taken: do.Take | None = None
        """A batch whose step begins once all that was decided with it is carried out."""
        self._lent: set[int] = set()
        self._gone = (0.0, 0.0)
        """Busy and present seconds of the instances that died."""
        self._group_size = recipe.batch.group_size
        self._score_s = recipe.task.score_s
        self._environments = SimulatedEnvironments(
            recipe, self, futures, truth, feed.prompt_tokens, self._score_later
        )
        self._carry_out: dict[type[Decision], Callable[[Any], None]] = {
            do.Start: self._start,
            do.Resume: self._resume,
            do.Move: self._move,
            do.Park: self._park,
            do.Evict: self._take_off,
            do.Abort: self._abort,
            do.Interrupt: self._interrupt,
            do.Open: self._environments.open,
            do.Reopen: self._environments.reopen,
            do.Cut: self._environments.cut,
            do.Load: self._load,
            do.Drop: self._drop,
            do.Lend: self._lend,
            do.Return: self._give_back,
            do.Restart: self._restart,
            do.Hand: self._hand,
            do.Take: self._take,
            do.Close: self._close,
        }

    # --- the loop -------------------------------------------------------------------------------

    def run(self) -> None:
        """Offer prompts, let the fleet join, then handle events until control is done."""
        self._offer_prompts()
        for engine in self.engines.values():
            self.tell(told.InstanceJoined(at=0.0, instance=engine.id, spec=engine.spec))
        self._tick(None)
        while not self.plane.is_done:
            self.now, _, act, argument = heapq.heappop(self._events)
            act(argument)
            self._settle()

    def _check_progress(self) -> None:
        """Raise an error if no group or step ended for long: a stuck pipeline must not hang."""
        w = self.plane.window
        progress = (w.taken, w.newest, w.num_active, w.num_finished)
        if progress != self._progress or self.trainer.is_training:
            self._progress, self._progress_at = progress, self.now
        quiet_s = self.now - self._progress_at
        assert quiet_s < _PATIENCE_S, f"nothing has happened for {quiet_s:.0f} s: {w}"

    def busy_share(self) -> float:
        """Share of the time instances were there and not training in which they decoded."""
        busy_s, present_s = self._gone
        for engine in self.engines.values():
            busy_s += engine.busy_s
            present_s += self.now - engine.born - self._lent_s(engine)
        return busy_s / max(1e-9, present_s)

    def _lent_s(self, engine: SimulatedEngine) -> float:
        """Seconds for which an instance was with the trainer, also if it still is."""
        is_lent = engine.is_paused and engine.is_responsive
        return engine.lent_s + (self.now if is_lent else 0.0)

    def tell(self, event: Input) -> None:
        self._inbox.append(event)

    def after(self, seconds: float, act: Callable[[Any], None], argument: Any = None) -> None:
        self.at(self.now + seconds, act, argument)

    def at(self, time: float, act: Callable[[Any], None], argument: Any = None) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (time, self._sequence, act, argument))

    def _settle(self) -> None:
        """Give control all inputs that are due, carry out its decisions, and schedule what follows."""
        inbox, handle, carry_out = self._inbox, self.plane.handle, self._carry_out
        queued, low_water = self.plane.prompts, self.feed.low_water
        while inbox:
            event = inbox.popleft()
            decisions = handle(event)
            self.num_inputs += 1
            for watch in self.watchers:
                watch(event, decisions)
            if decisions:
                self.num_decisions += len(decisions)
                for decision in decisions:
                    if (act := carry_out.get(type(decision))) is not None:
                        act(decision)
                if self._taken is not None:
                    self._begin_step(self._taken)
            if len(queued) < low_water:
                self._offer_prompts()
        for key in self._dirty:
            if (engine := self.engines.get(key)) is not None:
                self._schedule(engine)
        self._dirty.clear()

    def _offer_prompts(self) -> None:
        """Offer prompts before any other input, so that no group waits for an offer that could have come."""
        offer = self.feed.offer(len(self.plane.prompts), self.now)
        if offer is not None:
            self._inbox.appendleft(offer)

    def _schedule(self, engine: SimulatedEngine) -> None:
        engine.epoch += 1
        time = engine.next_event()
        if time is not None:
            self._sequence += 1
            heapq.heappush(self._events, (time, self._sequence, self._wake, (engine, engine.epoch)))

    def _tick(self, _: None) -> None:
        period = self.recipe.control.rebalance_period_s
        for engine in self.engines.values():
            if engine.is_responsive and self.now - engine.last_reported >= period:
                engine.advance(self.now)
                self._report(engine)
        is_told = self._environments.is_episodic
        self.tell(told.Tick(at=self.now, instances=self._instance_seconds() if is_told else {}))
        self._settle()
        self.feed.check(self.plane)
        self._check_progress()
        self.after(period, self._tick)

    def _report(self, engine: SimulatedEngine) -> None:
        engine.last_reported = self.now
        self.tell(
            told.LoadReport(
                at=self.now,
                instance=engine.id,
                clock=engine.clock,
                kv_tokens=engine.claimed_kv,
                step_s=engine.step_s,
            )
        )

    # --- engines --------------------------------------------------------------------------------

    def _wake(self, argument: tuple[SimulatedEngine, int]) -> None:
        """Handle what an engine does by itself: a turn ended, or the KV ran full."""
        engine, epoch = argument
        if epoch != engine.epoch or self.engines.get(engine.id) is not engine:
            return
        engine.advance(self.now)
        self._dirty.add(engine.id)
        for request in engine.ended():
            self._turn_over(engine, request)
        if engine.is_pressed:
            self.tell(
                told.KvPressure(
                    at=self.now, instance=engine.id, clock=engine.clock, kv_tokens=engine.claimed_kv
                )
            )
            self.at(self.now, self._relieve, engine)
        engine.refill_batch()

    def _relieve(self, engine: SimulatedEngine) -> None:
        """Report KV pressure to control; what is still too much the engine parks itself."""
        if engine.is_pressed and self.engines.get(engine.id) is engine:
            engine.advance(self.now)
            engine.park_youngest()
            self._dirty.add(engine.id)

    def _turn_over(self, engine: SimulatedEngine, request: SimulatedRequest) -> None:
        key = request.trajectory
        future = self._futures[key]
        if future.question is not None:
            self._role_over(engine, request, future.question)
            return
        if future.has_more_turns or self._environments.is_episodic:
            self._environments.ask(engine, request, future)
            return
        engine.release(key)
        tokens = int(request.until)
        future.total_tokens = tokens + request.prompt_tokens
        if future.is_evaluation:
            self._futures.forget([key])  # Nobody will train on it.
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
        self._score_later(key)

    def _role_over(self, engine: SimulatedEngine, request: SimulatedRequest, question: int) -> None:
        """A role has said its turn: whoever awaits it goes on."""
        engine.release(request.trajectory)
        self._futures.forget([request.trajectory])
        self.tell(
            told.Ended(
                at=self.now,
                instance=engine.id,
                trajectory=request.trajectory,
                tokens=int(request.until),
                clock=engine.clock,
                kv_tokens=engine.claimed_kv,
            )
        )
        self._environments.role_said(question)

    def _score_later(self, key: int) -> None:
        if self._score_s:
            self.after(self._score_s, self._score, key)
        else:
            self._score(key)

    def _score(self, key: int) -> None:
        group, member = divmod(key, self._group_size)
        self.tell(told.Scored(at=self.now, trajectory=key, reward=self.truth.reward(group, member)))

    def _start(self, d: do.Start) -> None:
        engine = self.engines[d.instance]
        engine.advance(self.now)
        future = self._futures.started(d)
        generated = future.continue_from(d.generated_tokens) if d.generated_tokens else 0
        request = SimulatedRequest(
            trajectory=d.trajectory,
            group=d.group,
            version=d.version,
            prompt_tokens=d.prompt_tokens,
            tokens=float(generated),
            until=float(future.until),
        )
        engine.submit(request, prefill=True)
        self._dirty.add(d.instance)

    def _abort(self, d: do.Abort) -> None:
        self._arriving.pop(d.trajectory, None)
        self._take_off(d)

    def _take_off(self, d: do.Abort | do.Evict) -> None:
        engine = self.engines.get(d.instance)
        if engine is not None and d.trajectory in engine.requests:
            engine.advance(self.now)
            engine.release(d.trajectory)
            engine.refill_batch()
            self._dirty.add(engine.id)

    def _park(self, d: do.Park) -> None:
        engine = self.engines[d.instance]
        engine.advance(self.now)
        if d.trajectory in engine.requests:
            engine.park(d.trajectory)
            self._dirty.add(engine.id)

    def _resume(self, d: do.Resume) -> None:
        engine = self.engines[d.instance]
        if d.trajectory in self._arriving:
            self._early_resumes[d.trajectory] = d
            return
        engine.advance(self.now)
        engine.resume(d.trajectory, d.appended_tokens, float(self._futures[d.trajectory].until))
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
            told.Moved(at=self.now, trajectory=d.trajectory, source=d.source, target=d.target, kv_bytes=moved)
        )
        if (early := self._early_resumes.pop(d.trajectory, None)) is not None:
            self._resume(early)

    # --- versions and devices -------------------------------------------------------------------

    def _load(self, d: do.Load) -> None:
        engine = self.engines[d.instance]
        engine.advance(self.now)
        engine.hold(engine.versions.difference(d.drop))
        apart = min((abs(d.version - v) for v in (*d.drop, *engine.versions)), default=1)
        wait = max(0.0, self._outgoing.get(engine.id, 0.0) - self.now)
        self.after(wait + engine.cost.load_s(apart), self._end_load, (engine, d.version))

    def _end_load(self, argument: tuple[SimulatedEngine, int]) -> None:
        engine, version = argument
        if self.engines.get(engine.id) is engine:
            engine.advance(self.now)
            engine.hold({*engine.versions, version})
            self._dirty.add(engine.id)
            self.tell(told.Loaded(at=self.now, instance=engine.id, version=version))

    def _drop(self, d: do.Drop) -> None:
        engine = self.engines[d.instance]
        engine.hold(engine.versions - {d.version})

    def _interrupt(self, d: do.Interrupt) -> None:
        engine = self.engines[d.instance]
        engine.advance(self.now)
        load_s = engine.cost.load_s(1) + (self.recipe.simulation.costs.switch_s if engine.is_paused else 0.0)
        engine.stall(load_s, "weight_loads_s")
        self.after(load_s, self._end_interrupt, (engine, d.version))
        self._dirty.add(engine.id)

    def _end_interrupt(self, argument: tuple[SimulatedEngine, int]) -> None:
        engine, version = argument
        if self.engines.get(engine.id) is engine:
            engine.advance(self.now)
            engine.interrupt(version)
            self._end_load(argument)

    def _lend(self, d: do.Lend) -> None:
        engine = self.engines[d.instance]
        engine.advance(self.now)
        engine.is_paused = True
        engine.lent_s -= self.now
        self._lent.add(engine.id)
        self.trainer.lent_gpus += engine.spec.gpus
        self._dirty.add(engine.id)
        self.tell(told.Lent(at=self.now, instance=engine.id))

    def _give_back(self, d: do.Return) -> None:
        engine = self.engines[d.instance]
        self._lent.discard(engine.id)
        self.trainer.lent_gpus -= engine.spec.gpus
        self.after(self.recipe.simulation.costs.switch_s, self._end_lending, engine)

    def _end_lending(self, engine: SimulatedEngine) -> None:
        if self.engines.get(engine.id) is engine:
            engine.advance(self.now)
            engine.is_paused = False
            engine.lent_s += self.now
            self._dirty.add(engine.id)
            self.tell(told.Returned(at=self.now, instance=engine.id))

    def _restart(self, d: do.Restart) -> None:
        engine = self.engines[d.instance]
        self.kill(d.instance)
        self.after(self.recipe.simulation.faults.restart_s, self.revive, engine)

    def kill(self, instance: int) -> None:
        """Remove an instance that dies; what was journalled of its requests survives."""
        engine = self.engines.pop(instance, None)
        if engine is None:
            return
        engine.advance(self.now)
        for key, request in engine.requests.items():
            self._futures.journal(key, request.tokens_at(engine.clock))
        for key, (move, request) in list(self._arriving.items()):
            if instance in (move.source, move.target):
                self._futures.journal(key, request.tokens)
                del self._arriving[key]
        lent_s = self._lent_s(engine)
        if engine.id in self._lent:
            self._lent.discard(engine.id)
            self.trainer.lent_gpus -= engine.spec.gpus
        busy_s, present_s = self._gone
        self._gone = (busy_s + engine.busy_s, present_s + self.now - engine.born - lent_s)

    def revive(self, engine: SimulatedEngine) -> None:
        """Let a restarted instance join with the newest version."""
        if engine.id in self.engines:
            return
        version = self.plane.window.newest
        fresh = SimulatedEngine(engine.id, engine.spec, engine.cost, version, self.now)
        self.engines[fresh.id] = fresh
        self.on_revival(fresh)
        self.tell(told.InstanceJoined(at=self.now, instance=fresh.id, spec=fresh.spec, version=version))

    # --- training -------------------------------------------------------------------------------

    def _hand(self, d: do.Hand) -> None:
        self.trainer.hand(d.group, self._futures.group_tokens(d.group), self.now)

    def _take(self, d: do.Take) -> None:
        self._taken = d

    def _begin_step(self, d: do.Take) -> None:
        """Begin the train step of a batch, with the devices that were lent for it."""
        self._taken = None
        tokens_of = {group: self._futures.group_tokens(group) for group in d.groups}
        trained, visible = self.trainer.begin(tokens_of, self.now)
        self._step = d
        if self._lent and trained < visible:
            self.at(trained, self._free_lent, d)
        self.at(visible, self._publish, (d, self.now, sum(tokens_of.values())))

    def _free_lent(self, take: do.Take) -> None:
        if self._step is take and self._lent:
            self.tell(told.Trained(at=self.now))

    def _publish(self, argument: tuple[do.Take, float, int]) -> None:
        take, began, tokens = argument
        if self._step is not take:
            return  # The step was lost; the batch may be in training again by now.
        self.trainer.end()
        self.publishes.append(self.now)
        self.train_spans.append((began, self.now))
        self.tokens_trained.append(tokens)
        for group in take.groups:
            self._futures.forget(self._futures.members(group))
        self.tell(
            told.Published(
                at=self.now,
                version=take.batch + 1,
                train_s=self.now - began,
                ahead_s=self.trainer.ahead_s,
                publish_s=self.trainer.publish_s,
                instances=self._instance_seconds(),
            )
        )

    def _instance_seconds(self) -> dict[int, InstanceSeconds]:
        """What each instance says of its own seconds, by its number."""
        return {key: engine.seconds for key, engine in self.engines.items()}

    def lose_step(self) -> None:
        """Let the trainer die in mid-step and come back without the step."""
        if self.trainer.is_training:
            self.trainer.end()
            self._step = None
            self.tell(told.StepLost(at=self.now, reason="simulated failure"))

    def _close(self, d: do.Close) -> None:
        self._environments.let_go(d.members)
        self._futures.forget(d.members)
