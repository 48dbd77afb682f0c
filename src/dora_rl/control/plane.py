"""The control plane: a deterministic function from one stream of inputs to decisions.

    input ──> handle ──> endings     trajectories: turns, scores, failures
                         steps       the trainer: batches taken, steps ended or lost
                         admission   what starts now, and where
                         (here)      instances: joins, deaths, reports, loads
                 │
                 └─────> decisions, in the order they must be carried out

The four sides share the objects in `ControlParts`: the window (may it start?), the ledger (nothing lost),
the fleet (who has room), dispatch (requests on instances), batches, fleet changes (versions on instances).
None owns a task, a process or a clock: time is what the inputs say.
"""

from collections.abc import Callable, Iterable
from typing import Any

from dora_rl.control.admission import Admission
from dora_rl.control.asides import Asides
from dora_rl.control.endings import Endings
from dora_rl.control.environments import Environments
from dora_rl.control.estimates import Estimates
from dora_rl.control.fleet import Instance, State
from dora_rl.control.integrity import check_integrity
from dora_rl.control.outcomes import Outcomes
from dora_rl.control.parts import ControlParts
from dora_rl.control.train_steps import TrainSteps
from dora_rl.control.window import Verdict
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision, Restart
from dora_rl.core.inputs import Input
from dora_rl.core.recipe import Batch, Control
from dora_rl.core.recipe.episodes import EpisodeSettings


class ControlPlane:
    """Turns the inputs of one run, one by one, into decisions."""

    def __init__(
        self,
        control: Control,
        batch: Batch,
        *,
        steps: int,
        estimates: Estimates,
        episode: EpisodeSettings | None = None,
        frozen: Iterable[int] = (),
    ) -> None:
        """`episode` says how many environments may be open, in a run whose trajectories are episodes.

        `frozen` versions play roles: they stay live, and turns of roles are asked of them.
        """
        p = ControlParts(control, batch, steps=steps, estimates=estimates, episode=episode, frozen=frozen)
        self._p = p
        self._environments = Environments(p)
        self._outcomes = Outcomes(p, self._environments)
        self._asides = Asides(p)
        self._admission = Admission(p, self._environments, self._asides)
        self._steps = TrainSteps(p, self._admission, self._outcomes)
        self._endings = Endings(
            p, self._admission, self._steps, self._outcomes, self._environments, self._asides
        )
        self._has_begun = False
        self._handlers: dict[type[Input], Callable[[Any], None]] = {
            told.InstanceJoined: self._joined,
            told.InstanceLost: self._lost,
            told.LoadReport: self._reported,
            told.KvPressure: self._pressed,
            told.Loaded: self._loaded,
            told.Lent: self._noted,
            told.Returned: self._returned,
            told.Ended: self._endings.ended,
            told.TurnEnded: self._endings.turn_ended,
            told.EnvironmentReplied: self._endings.environment_replied,
            told.EnvironmentFailed: self._endings.environment_failed,
            told.EpisodeEnded: self._endings.episode_ended,
            told.Refused: self._endings.refused,
            told.RoleTurnAsked: self._role_asked,
            told.RoleTurnDropped: self._endings.role_dropped,
            told.Scored: self._endings.scored,
            told.Moved: self._endings.moved,
            told.MoveFailed: self._endings.move_failed,
            told.PromptsOffered: self._prompts_offered,
            told.Opened: self._opened,
            told.OpenFailed: self._open_failed,
            told.Trained: self._trained,
            told.Published: self._steps.published,
            told.StepLost: self._steps.lost,
            told.StepsExtended: self._steps.extended,
            told.EvaluationAsked: self._evaluation_asked,
            told.Fault: self._noted,
            told.Replayed: self._noted,
            told.CheckpointDamaged: self._noted,
            told.Tick: self._ticked,
        }
        p.schedule.gate.onset(p.target.groups)
        # What a run is watched by.
        self.window, self.ledger, self.fleet = p.window, p.ledger, p.fleet
        self.dispatch, self.fleet_changes, self.batches = p.dispatch, p.fleet_changes, p.batches
        self.estimates, self.meters, self.target, self.prompts = p.estimates, p.meters, p.target, p.prompts

    def handle(self, event: Input) -> list[Decision]:
        """Take in one input and return the decisions it leads to, in the order to carry them out."""
        self._p.now = event.at
        self._handlers[type(event)](event)
        self._environments.open()
        return self._p.decided()

    @property
    def is_done(self) -> bool:
        """Whether the last train step was published."""
        return self._steps.is_done

    @property
    def steps(self) -> int:
        """Number of train steps of the whole run."""
        return self._p.steps

    @property
    def frozen_versions(self) -> frozenset[int]:
        """The versions that play roles."""
        return self._p.role_demand.versions

    @property
    def leaving_groups(self) -> int:
        """Groups that do not count against the target R while the trainer is idle."""
        return self._p.schedule.leaving_groups

    @property
    def is_training(self) -> bool:
        """Whether a train step is in flight."""
        return self._steps.is_training

    @property
    def is_stranded(self) -> bool:
        """Whether no batch can fill any more: the source is exhausted and too few groups are active."""
        return self.prompts.is_exhausted and self.lacks_prompts

    @property
    def lacks_prompts(self) -> bool:
        """Whether the idle trainer would wait for ever without another prompt."""
        return self._admission.lacks_prompts and not (self.is_training or self.is_done)

    def check_integrity(self) -> None:
        """Assert the laws and that every index agrees with what it indexes."""
        check_integrity(self._p)
        self._environments.check()
        self._asides.check()

    # --- instances ---

    def _joined(self, event: told.InstanceJoined) -> None:
        # It came back before anyone noticed that it was gone: what it carried is gone too.
        self._lost(told.InstanceLost(at=event.at, instance=event.instance, reason="joined again"))
        instance = Instance(instance=event.instance, spec=event.spec, version=event.version, now=event.at)
        self._p.fleet.join(instance)
        if self._has_begun:
            self._p.fleet_changes.rebalance(self._admission.waiting(), event.at)
            self._admission.fill(instance)

    def _lost(self, event: told.InstanceLost) -> None:
        p = self._p
        instance = p.fleet.get(event.instance)
        if instance is None:
            return
        p.meters.instance_losses += 1
        p.estimates.forget_instance(instance.id)
        stranded = [key for key, source in p.dispatch.moving.items() if source == instance.id]
        for t in [*instance.requests(), *filter(None, map(p.ledger.trajectory, stranded))]:
            self._outcomes.take_off(t, event.reason, gone=instance.id)
            p.dispatch.requeue(t, keeps_tokens=instance.spec.continues)
        p.fleet.leave(instance)
        self._admission.look_again()

    def _reported(self, event: told.LoadReport) -> None:
        instance = self._p.fleet.get(event.instance)
        if instance is not None:
            instance.report(event.at, event.clock, event.kv_tokens)
            self._learn_pace(instance, event)
            self._p.fleet.touch(instance)
            self._admission.fill(instance)

    def _learn_pace(self, instance: Instance, event: told.LoadReport) -> None:
        estimates, instance.step_s = self._p.estimates, event.step_s
        estimates.decoded(event.step_s)
        versions = sum(bool(cohort.running) for cohort in instance.cohorts.values())
        if versions and event.clock > instance.reported_clock:
            estimates.round_cost.observe(versions, instance.num_running, event.kv_tokens, event.step_s)
        instance.reported_clock = event.clock

    def _pressed(self, event: told.KvPressure) -> None:
        instance = self._p.fleet.get(event.instance)
        if instance is not None:
            instance.report(event.at, event.clock, event.kv_tokens)
            self._p.fleet_changes.relieve(instance, event.at)

    def _loaded(self, event: told.Loaded) -> None:
        p = self._p
        instance = p.fleet.get(event.instance)
        if instance is not None:
            p.estimates.load_ended(instance.id, event.at)
            if event.version == instance.loading:  # Else an interruption overtook it.
                p.fleet.expect(instance, None)
                p.fleet.hold(instance, event.version)
                if instance.state is State.LOADING:
                    instance.state = State.UP
                p.fleet.touch(instance)
            self._admission.fill(instance)
            if instance.is_idle and p.window.newest not in instance.versions():
                # A newer one was published meanwhile, and nothing wants this one.
                self._admission.look_again()
            p.versions.retire()

    def _noted(self, event: told.Lent | told.Fault | told.Replayed | told.CheckpointDamaged) -> None:
        """Ignore an input that is only recorded: nothing is decided about it."""

    def _returned(self, event: told.Returned) -> None:
        instance = self._p.fleet.get(event.instance)
        if instance is not None:
            instance.last_seen = event.at
            self._p.fleet_changes.returned(instance)
            self._admission.fill(instance)

    # --- prompts ---

    def _prompts_offered(self, event: told.PromptsOffered) -> None:
        queue = self._p.prompts
        was_empty = not queue
        assert not (queue.is_exhausted and event.prompts), "a source that is exhausted offers nothing"
        queue.waiting.extend(event.prompts)
        queue.is_exhausted |= event.is_last
        if was_empty and event.prompts and self._has_begun:
            # Whatever had room waited for this.
            self._admission.look_again()
            self._steps.take()

    def _opened(self, event: told.Opened) -> None:
        if not event.is_evaluation:
            self._p.prompts.opened(event.epoch, event.row, event.tokens)
            if self._has_begun:
                self._admission.admit()
        elif (t := self._environments.evaluation_heard_of(event.epoch, event.row)) is not None:
            t.prompt_tokens = event.tokens
            self._asides.queue_evaluations([t])
            self._seek_last_version()

    def _open_failed(self, event: told.OpenFailed) -> None:
        if not event.is_evaluation:
            self._environments.start_failed(event.epoch, event.row)
        elif (t := self._environments.evaluation_heard_of(event.epoch, event.row)) is not None:
            self._outcomes.close_group(self._p.ledger.evaluating[t.group], "failed: environment start")
            self._p.versions.retire()

    # --- time, the trainer, evaluations ---

    def _ticked(self, event: told.Tick) -> None:
        self._has_begun = True
        self._p.estimates.instances_told(event.instances)
        silence_s = self._p.control.silence_s
        generating = [i for i in self._p.fleet if i.state is not State.LENT]
        for instance in [i for i in generating if event.at - i.last_seen > silence_s]:
            self._p.emit(Restart(instance=instance.id, reason=f"silent for {silence_s:.0f} s"))
            self._lost(told.InstanceLost(at=event.at, instance=instance.id, reason="silent"))
        self._admission.look_again()
        self._environments.cut_overdue(self._steps.idle_since)

    def _trained(self, event: told.Trained) -> None:
        """Give lent devices back while the version is published, unless the next step wants them at once."""
        if self.is_training and self._p.window.verdict() is not Verdict.READY:
            self._p.fleet_changes.give_back(event.at)

    def _evaluation_asked(self, event: told.EvaluationAsked) -> None:
        self._admission.evaluate(event.prompts)
        self._seek_last_version()

    def _role_asked(self, event: told.RoleTurnAsked) -> None:
        self._asides.ask(event)
        if self._has_begun and not self._p.fleet.uses(event.version):
            self._admission.look_again()

    def _seek_last_version(self) -> None:
        """Have the last version served once nothing but an evaluation asks for it."""
        if self.is_done or self.is_stranded:
            self._admission.look_again()
