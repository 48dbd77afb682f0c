"""Endings: what happens to trajectories, and when their group is finished.

A trajectory generates, waits for its environment, ends, is scored. A group is finished when every
member is scored or given up, or redundant; then it is filtered or becomes part of a batch.
"""

from dora_rl.control.admission import Admission
from dora_rl.control.asides import Asides
from dora_rl.control.environments import Environments
from dora_rl.control.fleet import Instance
from dora_rl.control.ledger import GENERATING, Group, Phase, Trajectory
from dora_rl.control.outcomes import Outcomes
from dora_rl.control.parts import ControlParts
from dora_rl.control.train_steps import TrainSteps
from dora_rl.core import inputs as told


class Endings:
    """Handles what happens to single trajectories: turns, ends, scores, failures and moves."""

    def __init__(
        self,
        parts: ControlParts,
        admission: Admission,
        steps: TrainSteps,
        outcomes: Outcomes,
        environments: Environments,
        asides: Asides,
    ) -> None:
        self._p = parts
        self._asides = asides
        self._environments = environments
        self._admission = admission
        self._steps = steps
        self._outcomes = outcomes

    # --- generating ---

    def ended(self, event: told.Ended) -> None:
        """A trajectory generated its last token: free its slot and fill it."""
        p = self._p
        t, instance = self._heard_of(event)
        if t is None:
            return
        p.dispatch.release(t)
        if (turn := p.ledger.roles.get(t.group)) is not None:
            assert turn.question is not None, f"group {turn.id} is no role's turn"
            self._asides.forget_turn(turn.question, tokens=event.tokens)
        else:
            self._end(t, event)
        if instance is not None:
            instance.report(event.at, event.clock, event.kv_tokens)
            self._admission.fill(instance)

    def _end(self, t: Trajectory, event: told.Ended | told.EpisodeEnded) -> None:
        """Note that a trajectory ended, and learn from it; its reward is still to come."""
        p = self._p
        self._environments.ended(t)
        t.tokens, t.phase, t.truncated = event.tokens, Phase.ENDED, event.truncated
        p.meters.truncated += event.truncated
        p.estimates.lengths.observe(event.tokens)
        p.durations.member_ended(t.group, p.now)
        p.rounds.member_ended(t.group, t.member, event.tokens)
        if (group := p.ledger.groups.get(t.group)) is not None:
            p.row_lengths.observe(group.prompt.row, event.tokens)

    def turn_ended(self, event: told.TurnEnded) -> None:
        """A trajectory waits for its environment: its slot is free, its KV stays."""
        t, instance = self._heard_of(event)
        if t is None or instance is None:
            return
        self._p.dispatch.wait(t, event.tokens)
        t.waits_since = event.at
        instance.report(event.at, event.clock, event.kv_tokens)
        self._admission.fill(instance)

    def _heard_of(self, event: told.Ended | told.TurnEnded) -> tuple[Trajectory | None, Instance | None]:
        """The trajectory that an instance reports on, or None if it was started elsewhere meanwhile."""
        instance = self._p.fleet.get(event.instance)
        if instance is not None:
            instance.last_seen, instance.clock = event.at, event.clock
        t = self._p.ledger.trajectory(event.trajectory)
        if t is None or t.phase not in GENERATING:
            return None, instance
        if event.instance not in (t.instance, self._p.dispatch.moving.get(t.id)):
            return None, instance
        return t, instance

    # --- moving ---

    def moved(self, event: told.Moved) -> None:
        """A request arrived: learn from the time it took."""
        self._p.estimates.move_ended(event.trajectory, event.at)
        self._p.meters.kv_bytes_moved += event.kv_bytes
        t = self._p.ledger.trajectory(event.trajectory)
        if t is not None and t.instance == event.target:
            self._p.dispatch.moved(t)

    def move_failed(self, event: told.MoveFailed) -> None:
        """A move failed: the request waits for a place with the tokens it has."""
        t = self._p.ledger.trajectory(event.trajectory)
        if t is not None and t.id in self._p.dispatch.moving:
            self._outcomes.take_off(t, event.reason)
            self._p.dispatch.requeue(t, keeps_tokens=True)
            self._p.dispatch.fill_version(t.version)

    def role_dropped(self, event: told.RoleTurnDropped) -> None:
        """Nobody awaits the turn of a role any more: free what it holds."""
        t = self._asides.forget_turn(event.question)
        if t is not None:
            instance = self._p.fleet.get(t.instance)
            self._outcomes.take_off(t, "nobody awaits it")
            if instance is not None:
                self._admission.fill(instance)

    # --- environments ---

    def environment_replied(self, event: told.EnvironmentReplied) -> None:
        """An environment replied: its trajectory goes on, or another branch of it does."""
        group = self._p.ledger.group_of(event.trajectory)
        if group is None or (t := group.member(event.trajectory)).phase != Phase.WAITING:
            return
        self._p.estimates.waits.observe(event.at - t.waits_since)
        self._p.rounds.waited(t.group, t.member, (event.at - t.waits_since) / self._p.estimates.step_s)
        if event.context is None:
            self._p.dispatch.resume(t, event.tokens)
        else:
            held_on = self._drop_held(t)
            t.prompt_tokens = min(group.prompt.tokens, event.context)
            t.tokens = event.context - t.prompt_tokens
            t.phase = Phase.PENDING
            self._p.dispatch.place(t, is_back=True, near=held_on)
        if t.phase == Phase.PENDING:
            self._admission.make_room(t.version)

    def _drop_held(self, t: Trajectory) -> Instance | None:
        """Free the KV of a trajectory whose environment had the turn: the next turn is of another branch.

        Returns where it was, if it was not on its way.
        """
        instance = self._p.fleet.get(t.instance)
        if t.id in self._p.dispatch.moving:
            self._outcomes.take_off(t, "another branch goes on")
            return None
        if instance is not None:
            self._p.dispatch.evict(t, instance)
        return instance

    def episode_ended(self, event: told.EpisodeEnded) -> None:
        """An episode returned or was cut: free what it holds; its reward is still to come."""
        t = self._p.ledger.trajectory(event.trajectory)
        if t is None or t.phase >= Phase.ENDED:
            return
        instance = self._p.fleet.get(t.instance)
        self._outcomes.take_off(t, "its episode ended")
        self._end(t, event)
        if instance is not None:
            self._admission.fill(instance)

    def environment_failed(self, event: told.EnvironmentFailed) -> None:
        """An environment broke: another attempt of the trajectory, or its end."""
        self._try_again(event, "environment")

    def refused(self, event: told.Refused) -> None:
        """An engine cannot carry out a request: another attempt of the trajectory, or its end."""
        self._try_again(event, "engine")

    def _try_again(self, event: told.EnvironmentFailed | told.Refused, whose: str) -> None:
        """Start another attempt of a trajectory, or close it when its tries are used up."""
        is_episodic = self._environments.is_episodic
        group = self._p.ledger.group_of(event.trajectory)
        last = Phase.WAITING if is_episodic else Phase.ENDED
        if group is None or (t := group.member(event.trajectory)).phase > last or t.is_cut:
            return
        t.failures += 1
        self._outcomes.take_off(t, event.reason)
        if group.is_evaluation:
            self._asides.unqueue_evaluation(t)
        if t.failures < self._p.control.environment_tries and is_episodic:
            self._environments.reopen(t, group.prompt.tokens)
        elif t.failures < self._p.control.environment_tries:
            t.tokens, t.phase, t.attempt = 0, Phase.PENDING, t.attempt + 1
            self._p.dispatch.place(t)
        else:
            self._give_up(group, t, f"failed: {whose}, {t.failures} tries")

    def _give_up(self, group: Group, t: Trajectory, outcome: str) -> None:
        """Close a member that failed for good; its group goes on while `min_members` are left."""
        group.unscored -= 1
        self._outcomes.close(group, [t], outcome)
        if len(group.left()) < self._p.control.min_members:
            self._replace(group, "failed: too few members left")
        else:
            self._settle(group)

    # --- scores ---

    def scored(self, event: told.Scored) -> None:
        """A trajectory was scored; with the last score its group is finished."""
        group = self._p.ledger.group_of(event.trajectory)
        if group is None or (t := group.member(event.trajectory)).phase != Phase.ENDED:
            return
        t.reward, t.phase = event.reward, Phase.SCORED
        group.unscored -= 1
        self._settle(group)

    def _settle(self, group: Group) -> None:
        """Finish a group whose members are all scored, or all that are not redundant: those are aborted."""
        num_scored, control = len(group.left()) - group.unscored, self._p.control
        enough = max(control.min_members, len(group.members) - control.redundant_members)
        if group.unscored and num_scored >= enough:
            late = [t for t in group.left() if t.phase < Phase.SCORED]
            group.unscored = 0
            self._outcomes.close(group, late, "aborted: redundant member")
            self._admission.admit()
        if not group.unscored:
            self._finished(group)

    def _finished(self, group: Group) -> None:
        """Filter a group whose members are all scored, or let a batch have it."""
        p = self._p
        if group.is_evaluation:
            p.ledger.forget(group)
            self._asides.fill()
            p.versions.retire()
        elif p.control.filter_zero_variance and not group.has_variance():
            p.durations.ended(group.id, p.now, passed=False)
            p.rounds.ended(group.id)
            self._replace(group, "filtered: zero variance")
        else:
            p.ledger.finish(group)
            p.window.finish(group.version)
            p.pace.group_finished()
            p.durations.ended(group.id, p.now, passed=True)
            p.rounds.ended(group.id)
            self._steps.take()

    def _replace(self, group: Group, outcome: str) -> None:
        """Close a group in a counted outcome and let another start in its place."""
        self._outcomes.close_group(group, outcome)
        if not group.is_evaluation:
            self._p.schedule.gate.closed()
            if self._p.schedule.pins_at_onset:
                # The next batch may be the one that lacks it, and must not be filled up with a fresher one.
                self._admission.admit()
            self._steps.take()
            self._admission.admit()
