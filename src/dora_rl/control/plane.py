"""The control plane: a deterministic function from one stream of inputs to decisions.

    input ──> handle ──> window   may it start? may the batch be taken?
                         ledger   who is where, nothing lost
                         fleet    which instance has room
                         dispatch requests on instances
                         batches  exactly B groups a step
                         steering versions on instances (publish, pressure, timer, join or death)
                 │
                 └─────> decisions, in the order they must be carried out

It owns no task, process or clock: time is what the inputs say. After every input it does what can be
done now: take a batch, start what has a place, retire what nobody uses.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dora_rl.control.batches import Batches
from dora_rl.control.dispatch import Dispatch
from dora_rl.control.estimates import Estimates
from dora_rl.control.fleet import Fleet, Instance, State
from dora_rl.control.ledger import GENERATING, Group, Ledger, Phase, Trajectory
from dora_rl.control.meters import Meters
from dora_rl.control.pace import Pace
from dora_rl.control.prompts import Prompts
from dora_rl.control.schedules import make_schedule
from dora_rl.control.steering import Steering
from dora_rl.control.target import StalenessTarget, Target
from dora_rl.control.window import Verdict, Window
from dora_rl.core import inputs as told
from dora_rl.core.decisions import (
    Abort,
    Admit,
    Close,
    Decision,
    Finish,
    Hand,
    Restart,
    Retire,
    Take,
    Wait,
)
from dora_rl.core.inputs import Input
from dora_rl.core.recipe import Batch, Control


class ControlPlane:
    """One run's decisions."""

    def __init__(
        self,
        control: Control,
        batch: Batch,
        *,
        steps: int,
        seed: int,
        prompt_tokens: Sequence[int],
        estimates: Estimates,
    ) -> None:
        schedule = make_schedule(control, batch)
        self._control = control
        self._batch = batch
        self._steps = steps
        self._schedule = schedule
        self._out: list[Decision] = []
        self.estimates = estimates
        self.meters = Meters()
        self.prompts = Prompts(tokens=prompt_tokens, seed=seed)
        self.window = Window(
            batch_groups=batch.groups,
            max_staleness=schedule.max_staleness,
            spare=schedule.redundant_groups,
        )
        self.ledger = Ledger(group_size=batch.group_size)
        self.fleet = Fleet(watermark=control.kv_watermark)
        self.target = Target(window=self.window, fixed=schedule.active_groups)
        self.pace = Pace(self.window, estimates)
        self.batches = Batches(self.window, self.ledger, streams=control.stream)
        self.dispatch = Dispatch(
            self.ledger,
            self.fleet,
            estimates,
            self.meters,
            self._emit,
            queues=control.queue_scheduling,
            replicates=control.prompt_replication,
            kv_reuse=control.kv_reuse,
        )
        self.steering = Steering(
            self.fleet, self.window, self.dispatch, self.pace, self.meters, self._emit, control=control
        )
        self._staleness = StalenessTarget(window=self.window, limit=schedule.max_staleness)
        self._trains = False
        self._versions = {0}
        self._evaluations: dict[int, deque[Trajectory]] = {}
        """Evaluations that wait for a place, by version."""
        self._starved_mark = 0.0
        self._stall_mark = 0.0
        self._has_begun = False
        self._oldest_taken = 0
        self.is_done = False
        self._handlers: dict[type[Input], Callable[[Any], None]] = {
            told.InstanceJoined: self._joined,
            told.InstanceLost: self._lost,
            told.LoadReport: self._reported,
            told.KvPressure: self._pressed,
            told.Loaded: self._loaded,
            told.Lent: self._noted,
            told.Returned: self._returned,
            told.Ended: self._ended,
            told.TurnEnded: self._turn_ended,
            told.EnvironmentReplied: self._environment_replied,
            told.EnvironmentFailed: self._environment_failed,
            told.Scored: self._scored,
            told.Moved: self._moved,
            told.MoveFailed: self._move_failed,
            told.Published: self._published,
            told.StepLost: self._step_lost,
            told.EvaluationAsked: self._evaluation_asked,
            told.Tick: self._ticked,
        }
        schedule.gate.onset(self.target.groups)

    def handle(self, event: Input) -> list[Decision]:
        """Take in what happened; return what to do about it, in order."""
        self.now = event.at
        self._handlers[type(event)](event)
        decisions, self._out = self._out, []
        return decisions

    def _emit(self, decision: Decision) -> None:
        self._out.append(decision)

    # --- instances ------------------------------------------------------------------------------

    def _joined(self, event: told.InstanceJoined) -> None:
        # It came back before anyone noticed that it was gone: what it carried is gone too.
        self._lost(told.InstanceLost(at=event.at, instance=event.instance, reason="joined again"))
        instance = Instance(instance=event.instance, spec=event.spec, version=event.version, now=event.at)
        self.fleet.join(instance)
        if self._has_begun:
            self._rebalance()
            self._fill(instance)

    def _lost(self, event: told.InstanceLost) -> None:
        instance = self.fleet.get(event.instance)
        if instance is None:
            return
        self.meters.instance_losses += 1
        self.estimates.forget_instance(instance.id)
        stranded = [key for key, source in self.dispatch.moving.items() if source == instance.id]
        for t in [*instance.requests(), *filter(None, map(self.ledger.trajectory, stranded))]:
            self._take_off(t, event.reason, gone=instance.id)
            self.dispatch.requeue(t, keeps_tokens=instance.spec.continues)
        self.fleet.leave(instance)
        self._rebalance()
        self._fill_everything()

    def _reported(self, event: told.LoadReport) -> None:
        instance = self.fleet.get(event.instance)
        if instance is None:
            return
        instance.report(event.at, event.clock, event.kv_tokens)
        instance.step_s = event.step_s
        self.estimates.decoded(event.step_s)
        self.fleet.touch(instance)
        self._fill(instance)

    def _pressed(self, event: told.KvPressure) -> None:
        instance = self.fleet.get(event.instance)
        if instance is None:
            return
        instance.report(event.at, event.clock, event.kv_tokens)
        self.steering.relieve(instance, event.at)

    def _loaded(self, event: told.Loaded) -> None:
        instance = self.fleet.get(event.instance)
        if instance is None:
            return
        self.estimates.load_ended(instance.id, event.at)
        self.steering.loaded(instance, event.version)
        self._fill(instance)
        self._retire()

    def _noted(self, event: told.Lent) -> None:
        """Lending was decided here; the word that it happened changes nothing."""

    def _returned(self, event: told.Returned) -> None:
        instance = self.fleet.get(event.instance)
        if instance is not None:
            instance.last_seen = event.at
            self.steering.returned(instance)
            self._fill(instance)

    def _ticked(self, event: told.Tick) -> None:
        self._has_begun = True
        for instance in [i for i in self.fleet if self._is_silent(i)]:
            self._emit(Restart(instance=instance.id, reason=f"silent for {self._control.silence_s:.0f} s"))
            self._lost(told.InstanceLost(at=event.at, instance=instance.id, reason="silent"))
        self._rebalance()
        self._fill_everything()

    def _is_silent(self, instance: Instance) -> bool:
        return instance.state is not State.LENT and self.now - instance.last_seen > self._control.silence_s

    # --- trajectories ---------------------------------------------------------------------------

    def _ended(self, event: told.Ended) -> None:
        t, instance = self._heard_of(event)
        if t is None:
            return
        self.dispatch.release(t)
        t.tokens, t.phase, t.truncated = event.tokens, Phase.ENDED, event.truncated
        self.meters.truncated += event.truncated
        self.estimates.lengths.observe(event.tokens)
        if instance is not None:
            instance.report(event.at, event.clock, event.kv_tokens)
            self._fill(instance)

    def _turn_ended(self, event: told.TurnEnded) -> None:
        t, instance = self._heard_of(event)
        if t is None or instance is None:
            return
        self.dispatch.wait(t, event.tokens)
        instance.report(event.at, event.clock, event.kv_tokens)
        self._fill(instance)

    def _heard_of(self, event: told.Ended | told.TurnEnded) -> tuple[Trajectory | None, Instance | None]:
        """The trajectory an instance speaks of, unless it was meanwhile started elsewhere."""
        instance = self.fleet.get(event.instance)
        if instance is not None:
            instance.last_seen, instance.clock = event.at, event.clock
        t = self.ledger.trajectory(event.trajectory)
        if t is None or t.phase not in GENERATING:
            return None, instance
        if event.instance not in (t.instance, self.dispatch.moving.get(t.id)):
            return None, instance
        return t, instance

    def _environment_replied(self, event: told.EnvironmentReplied) -> None:
        t = self.ledger.trajectory(event.trajectory)
        if t is not None and t.phase == Phase.WAITING:
            self.dispatch.resume(t, event.tokens)

    def _environment_failed(self, event: told.EnvironmentFailed) -> None:
        group = self.ledger.group_of(event.trajectory)
        if group is None or (t := group.member(event.trajectory)).phase >= Phase.SCORED:
            return
        t.failures += 1
        self._take_off(t, event.reason)
        if t.failures < self._control.environment_tries:
            t.tokens, t.phase, t.attempt = 0, Phase.PENDING, t.attempt + 1
            self.dispatch.place(t)
        else:
            self._give_up(group, t, f"failed: environment, {t.failures} tries")

    def _give_up(self, group: Group, t: Trajectory, outcome: str) -> None:
        """A member failed for good; the group goes on while enough are left."""
        group.unscored -= 1
        self._close(group, [t], outcome)
        left = group.left()
        if len(left) < self._control.min_members:
            self._close_group(group, left, "failed: too few members left")
        elif not group.unscored:
            self._finished(group)

    def _scored(self, event: told.Scored) -> None:
        group = self.ledger.group_of(event.trajectory)
        if group is None or (t := group.member(event.trajectory)).phase != Phase.ENDED:
            return
        t.reward, t.phase = event.reward, Phase.SCORED
        group.unscored -= 1
        if not group.unscored:
            self._finished(group)

    def _finished(self, group: Group) -> None:
        if group.is_evaluation:
            self.ledger.forget(group)
            self._fill_evaluation()
            self._retire()
        elif self._control.filter_zero_variance and not group.has_variance():
            self._close_group(group, group.left(), "filtered: zero variance")
        else:
            self.ledger.finish(group)
            self.window.finish(group.version)
            self.pace.group_finished()
            self._take()

    def _moved(self, event: told.Moved) -> None:
        self.estimates.move_ended(event.trajectory, event.at)
        self.meters.kv_bytes_moved += event.kv_bytes
        t = self.ledger.trajectory(event.trajectory)
        if t is not None and t.instance == event.target:
            self.dispatch.moved(t)

    def _move_failed(self, event: told.MoveFailed) -> None:
        t = self.ledger.trajectory(event.trajectory)
        if t is not None and t.id in self.dispatch.moving:
            self._take_off(t, event.reason)
            self.dispatch.requeue(t, keeps_tokens=True)
            self.dispatch.fill_version(t.version)

    # --- outcomes -------------------------------------------------------------------------------

    def _close(self, group: Group, members: list[Trajectory], outcome: str) -> None:
        for t in members:
            self._take_off(t, outcome)
            self.ledger.close(group, t, outcome)
        if members:
            ids = tuple(t.id for t in members)
            self._emit(Close(group=group.id, members=ids, outcome=outcome))

    def _close_group(self, group: Group, members: list[Trajectory], outcome: str) -> None:
        """The group will not be trained on: every member left ends in `outcome`; another group may start."""
        self._close(group, members, outcome)
        self.ledger.forget(group)
        if not group.is_evaluation:
            self.window.close(group.version, finished=group.is_finished)
            self._schedule.gate.closed()
            self._take()
            self._admit()

    def _take_off(self, t: Trajectory, reason: str, *, gone: int | None = None) -> None:
        """Abort it wherever it may be: on its way nobody can tell whether it left or arrived."""
        for instance in (self.dispatch.moving.get(t.id), t.instance):
            if instance is not None and instance != gone:
                self._emit(Abort(instance=instance, trajectory=t.id, reason=reason))
        self.dispatch.release(t)

    # --- trainer --------------------------------------------------------------------------------

    def _published(self, event: told.Published) -> None:
        starved_s, stall_s = self.meters.starved_s, self.meters.window_stall_s
        self.window.publish(event.version)
        self._versions.add(event.version)
        self.batches.commit()
        self._trains = False
        self.estimates.trained(event.train_s)
        self.pace.published(event.at)
        if event.version == self._steps:
            self._finish()
            return
        self.target.published(was_starved=starved_s > self._starved_mark)
        if self._control.adapt_staleness:
            share = (stall_s - self._stall_mark) / max(1e-9, self.pace.interval_s)
            self._staleness.published(stall_share=share, oldest_taken=self._oldest_taken)
        self._starved_mark, self._stall_mark = starved_s, stall_s
        self._take()
        if self._schedule.interrupts:
            self.steering.interrupt(event.version)
        if not self._trains:
            self.steering.give_back(event.at)
        self._rebalance()
        self._fill_everything()
        self._retire()

    def _finish(self) -> None:
        self.is_done = True
        self.meters.wait(None, self.now)
        self._emit(Finish())

    def _step_lost(self, event: told.StepLost) -> None:
        """The trainer starts again without the step in flight, or without what it was handed."""
        if self._trains:
            self._trains = False
            self.batches.give_back()
            self.pace.step_lost()
        else:
            self.batches.reopen()
        self._take()

    def _take(self) -> None:
        """Close the next batch if the trainer is idle and the rule allows; else say what it waits for."""
        if self._trains or self.is_done or self.window.taken == self._steps:
            return
        for group in self.batches.hand_over():
            self._emit(Hand(batch=self.window.taken, group=group.id))
        verdict = self.batches.verdict()
        if verdict is not Verdict.READY:
            if self.meters.wait(verdict, self.now):
                self._emit(Wait(reason=verdict.value))
            return
        self._abort_redundant()
        number = self.window.taken
        batch = self.batches.take()
        staleness = tuple(number - group.version for group in batch)
        self._trains = True
        self._note(batch, staleness)
        self.steering.lend(self.now)
        self._emit(Take(batch=number, groups=tuple(group.id for group in batch), staleness=staleness))
        self._onset()

    def _note(self, batch: list[Group], staleness: tuple[int, ...]) -> None:
        self.meters.wait(None, self.now)
        self.meters.staleness.update(staleness)
        self.meters.mixed_trajectories += sum(t.is_mixed for group in batch for t in group.left())
        self._oldest_taken = max(staleness)
        self.pace.taken(self.now)

    def _onset(self) -> None:
        """A step begins: new groups may start."""
        self._schedule.gate.onset(self.target.groups - self.window.num_active)
        self._admit()
        self._retire()

    def _abort_redundant(self) -> None:
        """Groups started beyond need end when a batch is complete: the youngest, unfinished ones first."""
        while self.window.spare and (version := self.window.overfull()) is not None:
            candidates = (group for group in self.ledger.groups.values() if group.version <= version)
            group = max(candidates, key=lambda g: (not g.is_finished, not self.batches.holds(g), g.id))
            self._close(group, group.left(), "aborted: redundant")
            self.ledger.forget(group)
            self.window.close(group.version, finished=group.is_finished)

    # --- starting -------------------------------------------------------------------------------

    def _fill(self, instance: Instance) -> None:
        """An instance may have room: give it what waits for it, then new groups."""
        if instance.state is not State.UP:
            return
        if self.dispatch.pending:
            self.dispatch.fill(instance)
        if self._evaluations:
            self._fill_evaluation()
        if self.window.newest in instance.lanes:
            self._admit()
        elif self._control.refill:
            self._refill(instance)

    def _fill_everything(self) -> None:
        for version in sorted(self.dispatch.pending):
            self.dispatch.fill_version(version)
        self._fill_evaluation()
        self._admit()
        if self._control.refill:
            for instance in self.fleet:
                if self.window.newest not in instance.lanes:
                    self._refill(instance)

    def _admit(self) -> None:
        """Start groups of the newest version while rule, target and room allow."""
        version = self.window.newest
        while self._may_admit(version):
            place = self.dispatch.place_for(version, self.prompts.peek().tokens)
            if place is None:
                return
            self._start_group(version, place)

    def _refill(self, instance: Instance) -> None:
        """Start groups of an instance's own older version, while the trainer would starve otherwise."""
        version = instance.newest
        while (
            self.fleet.has_room(instance, self.prompts.peek().tokens)
            and self.pace.would_starve(self.now)
            and version in self._versions
            and version > self.window.oldest_allowed
            and self._may_admit(version)
            and self.pace.can_finish(version, self.now)
        ):
            self._start_group(version, instance)

    def _may_admit(self, version: int) -> bool:
        active = self.window.num_active
        if active >= self.target.groups:
            self.target.reached()
            return False
        wanted = active < (self._steps - self.window.taken) * self._batch.groups
        is_open = wanted and self._schedule.gate.is_open
        return is_open and self.window.room(version) > 0 and self.batches.allows(version)

    def _start_group(self, version: int, place: Instance) -> None:
        """Check, admission and pinning are one act, at the moment the first member starts."""
        prompt = self.prompts.next()
        self.window.admit(version)
        self._schedule.gate.admitted()
        group = self.ledger.admit(prompt, version)
        self._emit(Admit(group=group.id, version=version, epoch=prompt.epoch, row=prompt.row))
        self.dispatch.launch(group, place)

    # --- evaluation -----------------------------------------------------------------------------

    def _evaluation_asked(self, event: told.EvaluationAsked) -> None:
        version = self.window.newest
        for row in event.prompts:
            group = self.ledger.evaluate(self.prompts.at(row), version)
            self._evaluations.setdefault(version, deque()).extend(group.members)
        self._fill_evaluation()

    def _fill_evaluation(self) -> None:
        """Evaluation may use its share of the slots, and waits for a place like everyone else."""
        for version in sorted(self._evaluations):
            queue = self._evaluations[version]
            while queue and self._evaluations_running() < self._evaluation_slots():
                place = self.dispatch.place_for(version, queue[0].prompt_tokens)
                if place is None:
                    break
                self.dispatch.start(queue.popleft(), place)
            if not queue:
                del self._evaluations[version]

    def _evaluations_running(self) -> int:
        return len(self.ledger.evaluating) - sum(map(len, self._evaluations.values()))

    def _evaluation_slots(self) -> int:
        slots = sum(instance.spec.slots for instance in self.fleet)
        return max(1, int(self._control.evaluation_share * slots))

    # --- versions -------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        planned = min(self.target.groups - self.window.num_active, self.window.room(self.window.newest))
        waiting = {v: len(queue) for v, queue in self.dispatch.pending.items() if queue}
        for version, queue in self._evaluations.items():
            waiting[version] = waiting.get(version, 0) + len(queue)
        if not self._control.rebalance and all(map(self.fleet.serving, {*waiting, self.window.newest})):
            return
        self.steering.rebalance(waiting, max(0, planned) * self._batch.group_size, self.now)

    def _retire(self) -> None:
        """A version that is not the newest goes when no group, evaluation or instance uses it."""
        for version in sorted(self._versions - {self.window.newest}):
            evaluated = any(group.version == version for group in self.ledger.evaluating.values())
            is_active = self.window.active(version) or self.dispatch.num_pending(version)
            if is_active or evaluated or self.fleet.uses(version):
                continue
            self._versions.discard(version)
            self.fleet.forget(version)
            self.dispatch.pending.pop(version, None)
            self._emit(Retire(version=version))

    # --- laws -----------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Assert the laws and that every index agrees with what it indexes."""
        self.window.check()
        self.ledger.check()
        self.fleet.check()
        self.batches.check()
        groups = self.ledger.groups.values()
        assert self.window.num_active == len(groups)
        assert self.window.num_finished == sum(group.is_finished for group in groups)
        pending = {t.id for queue in self.dispatch.pending.values() for t in queue}
        for group in groups:
            for t in group.members:
                self._check_place(t, pending)

    def _check_place(self, t: Trajectory, pending: set[int]) -> None:
        on_instance = self.fleet.get(t.instance) is not None
        if t.phase in (Phase.RUNNING, Phase.MOVING):
            assert on_instance, f"trajectory {t.id} runs nowhere"
        assert (t.phase == Phase.PENDING) == (t.id in pending), f"trajectory {t.id} is queued wrongly"
        if t.phase >= Phase.ENDED:
            assert t.instance is None, f"trajectory {t.id} ended and still holds instance {t.instance}"
