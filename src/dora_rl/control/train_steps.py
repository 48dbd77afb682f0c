"""Steps: the trainer's side of the control plane.

Owns whether a step is in flight. Decides when a batch is taken, what a step's beginning and its end
change, and what the idle trainer waits for. One step at a time, each on exactly B groups.
"""

from dora_rl.control.admission import Admission
from dora_rl.control.outcomes import Outcomes
from dora_rl.control.parts import ControlParts
from dora_rl.control.target import StalenessTarget
from dora_rl.control.window import Verdict
from dora_rl.core.decisions import Finish, Hand, Take, Wait
from dora_rl.core.inputs import Published, StepLost, StepsExtended


class TrainSteps:
    """Takes a batch for each train step, and handles the step's end or loss."""

    def __init__(self, parts: ControlParts, admission: Admission, outcomes: Outcomes) -> None:
        self._p = parts
        self._outcomes = outcomes
        self._admission = admission
        self._staleness = StalenessTarget(window=parts.window, limit=parts.schedule.max_staleness)
        self._starved_mark = 0.0
        self._stall_mark = 0.0
        self._oldest_taken = 0
        self.is_training = False
        self.is_done = False
        self.idle_since: float | None = 0.0
        """Since when the trainer could train on a batch and has none; None while it trains or is done."""

    # --- taking ---

    def take(self) -> None:
        """Take the next batch if the trainer is idle and the rule allows; else emit what it waits for."""
        p = self._p
        if self.is_training or self.is_done or p.window.taken == p.steps:
            return
        verdict = Verdict.STARVED
        if not self._awaits_older():
            for group in p.batches.hand_over():
                p.emit(Hand(batch=p.window.taken, group=group.id))
            verdict = p.window.verdict()
        if verdict is not Verdict.READY:
            if verdict is Verdict.STARVED and self._admission.lacks_prompts:
                verdict = Verdict.PROMPTS
            if p.meters.wait(verdict, p.now):
                p.emit(Wait(reason=verdict.value))
            return

        self._abort_redundant()
        number, batch = p.window.taken, p.batches.take()
        staleness = tuple(number - group.version for group in batch)
        self.is_training, self.idle_since = True, None
        self._oldest_taken = max(staleness)
        p.meters.took(batch, staleness, p.now)
        p.pace.taken(p.now)
        lent = p.fleet_changes.prepare_lending(p.now)
        p.emit(Take(batch=number, groups=tuple(group.id for group in batch), staleness=staleness))

        # The step begins: new groups may start in the place of those taken.
        missing = p.target.groups - p.window.num_active
        if p.schedule.puts_off and p.prompts.begin_long_round(p.batch.groups):
            missing -= p.schedule.redundant_groups
        p.schedule.gate.onset(missing)
        self._admission.admit()
        p.versions.retire()
        p.fleet_changes.lend(lent)

    def _awaits_older(self) -> bool:
        """Whether the next batch is to be of one version, and too few groups of that version are finished."""
        p, version = self._p, max(0, self._p.window.oldest_allowed)
        return (
            p.schedule.pins_at_onset
            and p.window.finished_up_to(version) < p.batch.groups
            and p.versions.are_live(version)
            and not p.prompts.is_exhausted
        )

    def _abort_redundant(self) -> None:
        """Close redundant groups before a batch is taken: the unfinished first, the youngest first."""
        p = self._p
        while p.window.spare and (version := p.window.overfull()) is not None:
            candidates = (group for group in p.ledger.groups.values() if group.version <= version)
            group = max(candidates, key=lambda g: (not g.is_finished, not p.batches.holds(g), g.id))
            outcome = "aborted: redundant"
            if p.schedule.puts_off:
                outcome = "put off: long"
                p.prompts.put_off.append(group.prompt)
            self._outcomes.close_group(group, outcome)

    # --- ending ---

    def published(self, event: Published) -> None:
        """A version was published: count its step, learn from it, and take the next batch if there is one."""
        p = self._p
        self._admission.version_replaced()
        p.window.publish(event.version)
        p.versions.publish(event.version)
        p.ledger.commit()
        p.estimates.trained(event.train_s)
        p.estimates.instances_told(event.instances)
        p.pace.published(event.at)
        self.is_training, self.idle_since = False, p.now
        if event.version == p.steps:
            self.is_done, self.idle_since = True, None
            p.meters.wait(None, p.now)
            p.emit(Finish())
            return
        self._go_on()

    def extended(self, event: StepsExtended) -> None:
        """The run was given more steps: go on, also after what was the last one."""
        p, was_done = self._p, self.is_done
        assert event.steps >= p.steps, f"{event.steps} steps where {p.steps} were asked for"
        p.steps = event.steps
        self.is_done = p.window.newest == p.steps
        if was_done and not self.is_done:
            self.idle_since = p.now
            self._go_on()

    def _go_on(self) -> None:
        """Take the next batch after a publish if there is one, and let instances start what follows."""
        p = self._p
        self._adjust()
        if p.control.long_first:
            p.prompts.put_long_first(p.batch.groups, p.row_lengths)
        self.take()
        if p.schedule.interrupts:
            p.fleet_changes.interrupt(p.window.newest)
        if not self.is_training:
            p.fleet_changes.give_back(p.now)
            p.fleet_changes.renew_returning(p.now)
        self._admission.look_again()
        p.versions.retire()

    def _adjust(self) -> None:
        """Let the controllers of R and S react to the step that ended."""
        p, meters = self._p, self._p.meters
        interval_s = max(1e-9, p.pace.interval_s)
        stalled_share = (meters.window_stall_s - self._stall_mark) / interval_s
        p.durations.published()
        p.target.published(
            p.now,
            interval_s=interval_s,
            starved_share=(meters.starved_s - self._starved_mark) / interval_s,
            stalled_share=stalled_share,
        )
        if p.control.adapt_staleness and not p.schedule.pins_at_onset:
            self._staleness.published(stall_share=stalled_share, oldest_taken=self._oldest_taken)
        self._starved_mark, self._stall_mark = meters.starved_s, meters.window_stall_s

    def lost(self, event: StepLost) -> None:
        """The trainer restarted: take back the step in flight, or the groups it was handed while idle."""
        if self.is_training:
            self.is_training, self.idle_since = False, self._p.now
            self._p.batches.give_back()
            self._p.pace.step_lost()
        else:
            self._p.batches.reopen()
        self.take()
