"""Follows a run through its inputs and decisions, live as a watcher or afterwards from the event log.

Forgets what a published step consumed, so memory does not grow with the run; the timeline, which keeps
more, is kept apart.
"""

from collections import Counter
from collections.abc import Callable
from statistics import fmean, pstdev
from typing import Any

from msgspec import Struct, field

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input
from dora_rl.core.record import Record
from dora_rl.core.reward_means import mean_by_function
from dora_rl.observe.live.event_facts import EvaluationFacts, FailureFacts, FaultFacts, RunState, StepFacts
from dora_rl.observe.timeline import Tracker

_WAITS = {
    "starved": "waits for groups to finish",
    "window": "waits for old groups that are due",
    "prompts": "waits for prompts",
}


class _Member(Struct, kw_only=True):
    tokens: int = 0
    is_truncated: bool = False
    reward: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)


class _Group(Struct, kw_only=True):
    version: int
    members: dict[int, _Member] = field(default_factory=dict)

    @property
    def rewards(self) -> list[float]:
        return [member.reward for member in self.members.values() if member.reward is not None]


class _Evaluation(Struct, kw_only=True):
    num_asked: int = 0
    num_ended: int = 0
    rewards: list[float] = field(default_factory=list)
    values: list[dict[str, float | None]] = field(default_factory=list)


class Follower:
    """Collects the facts of a run's steps, evaluations and failures; its `watch` is a watcher of the run."""

    def __init__(self) -> None:
        self.steps: list[StepFacts] = []
        self.evaluated: list[EvaluationFacts] = []
        """Complete evaluations in the order they were completed."""
        self.outcomes: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        """Versions that were replaced before they started a group, by what kept them from it."""
        self.failures: dict[tuple[str, str], FailureFacts] = {}
        """Failures of reward functions, by function and kind."""
        self.faults: dict[str, FaultFacts] = {}
        """Deaths of workers, by worker."""
        self.num_replays = 0
        self.num_different = 0
        self.is_over = False
        self.num_steps: int | None = None
        """Number of train steps of the run, where it was extended."""
        self._now = 0.0
        self._version = 0
        self._tracker = Tracker(keeps_history=False)
        self._active: dict[int, _Group] = {}
        self._group_of: dict[int, int] = {}
        self._version_of: dict[int, int] = {}
        """The version that each held-out trajectory was first started under."""
        self._evaluations: dict[int, _Evaluation] = {}
        self._taken: tuple[do.Take, dict[int, _Group]] | None = None
        self._wait: tuple[str, float] | None = None
        self._waited_s: dict[str, float] = {}
        self._generated = 0
        self._last_published_at = 0.0
        self._handlers: dict[type[Record], Callable[[Any], None]] = {
            told.Ended: self._ended,
            told.EpisodeEnded: self._ended,
            told.OpenFailed: self._not_opened,
            told.Scored: self._scored,
            told.EvaluationAsked: self._asked,
            told.Published: self._published,
            told.StepLost: self._step_lost,
            told.StepsExtended: self._extended,
            told.Fault: self._fault,
            told.Replayed: self._replayed,
            do.Admit: self._admitted,
            do.Start: self._started,
            do.Take: self._took,
            do.Close: self._closed,
            do.Wait: self._waiting,
            do.Skip: self._skipped,
            do.Finish: self._finished,
        }

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        """Take in one input and its decisions."""
        self._now = event.at
        self._tracker.watch(event, decisions)
        for record in (event, *decisions):
            handler = self._handlers.get(type(record))
            if handler is not None:
                handler(record)

    @property
    def state(self) -> RunState:
        """The state of the run after the last input."""
        return RunState(
            at=self._now,
            version=self._version,
            trainer=self._trainer(),
            active_by_version=dict(sorted(Counter(g.version for g in self._active.values()).items())),
            running=self._tracker.running,
            outcomes=dict(self.outcomes),
            skipped=dict(self.skipped),
            failures=list(self.failures.values()),
            faults=list(self.faults.values()),
            num_replays=self.num_replays,
            num_different=self.num_different,
        )

    @property
    def evaluations(self) -> list[EvaluationFacts]:
        """The mean reward of each evaluation so far, complete or not, by version."""
        return [
            _evaluation_facts(version, found)
            for version, found in sorted(self._evaluations.items())
            if found.rewards
        ]

    # --- trajectories ---

    def _admitted(self, decision: do.Admit) -> None:
        self._active[decision.group] = _Group(version=decision.version)

    def _started(self, decision: do.Start) -> None:
        if decision.evaluation:
            self._version_of.setdefault(decision.trajectory, decision.version)
        elif decision.group in self._active:
            self._group_of[decision.trajectory] = decision.group
            self._active[decision.group].members.setdefault(decision.trajectory, _Member())

    def _ended(self, event: told.Ended | told.EpisodeEnded) -> None:
        self._generated += event.tokens
        if (member := self._member(event.trajectory)) is not None:
            member.tokens, member.is_truncated = event.tokens, event.truncated

    def _not_opened(self, event: told.OpenFailed) -> None:
        """A prompt was dropped before it was a group: it counts once; an evaluation is closed by control."""
        if not event.is_evaluation:
            self.outcomes["failed: environment start"] += 1

    def _scored(self, event: told.Scored) -> None:
        for failure in event.failures:
            self._failed(failure)
        if event.trajectory in self._version_of:
            self._evaluation_ended(event.trajectory, event.reward, event.values)
        elif (member := self._member(event.trajectory)) is not None:
            member.reward, member.values = event.reward, event.values

    def _failed(self, failure: told.RewardFault) -> None:
        key = (failure.function, failure.reason)
        before = self.failures.get(key)
        self.failures[key] = FailureFacts(
            function=failure.function,
            reason=failure.reason,
            count=before.count + 1 if before else 1,
            example=before.example if before else failure.detail,
        )

    def _closed(self, decision: do.Close) -> None:
        self.outcomes[decision.outcome] += len(decision.members)
        for trajectory in self._version_of.keys() & set(decision.members):
            self._evaluation_ended(trajectory, None)
        group = self._active.get(decision.group)
        if group is None:
            return
        for trajectory in [t for t in group.members if t in decision.members]:
            del group.members[trajectory]
            self._group_of.pop(trajectory, None)
        if not group.members:
            del self._active[decision.group]

    def _member(self, trajectory: int) -> _Member | None:
        group = self._active.get(self._group_of.get(trajectory, -1))
        return None if group is None else group.members.get(trajectory)

    # --- held-out rows ---

    def _asked(self, event: told.EvaluationAsked) -> None:
        self._evaluations[self._version] = _Evaluation(num_asked=len(event.prompts))

    def _evaluation_ended(
        self, trajectory: int, reward: float | None, values: dict[str, float | None] | None = None
    ) -> None:
        version = self._version_of.pop(trajectory)
        found = self._evaluations.setdefault(version, _Evaluation())
        found.num_ended += 1
        found.values.append(values or {})
        if reward is not None:
            found.rewards.append(reward)
        if found.num_ended == found.num_asked and found.rewards:
            self.evaluated.append(_evaluation_facts(version, found))

    # --- workers ---

    def _fault(self, event: told.Fault) -> None:
        before = self.faults.get(event.worker)
        count = before.count + 1 if before else 1
        self.faults[event.worker] = FaultFacts(worker=event.worker, count=count, last_reason=event.reason)

    def _replayed(self, event: told.Replayed) -> None:
        self.num_replays += 1
        self.num_different += event.num_different

    # --- trainer ---

    def _waiting(self, decision: do.Wait) -> None:
        self._end_wait()
        self._wait = (decision.reason, self._now)

    def _skipped(self, decision: do.Skip) -> None:
        self.skipped[decision.reason] += 1

    def _took(self, decision: do.Take) -> None:
        self._end_wait()
        groups = {group: self._active.pop(group) for group in decision.groups if group in self._active}
        self._taken = (decision, groups)

    def _step_lost(self, event: told.StepLost) -> None:
        if self._taken is not None:
            self._active |= self._taken[1]
            self._taken = None

    def _published(self, event: told.Published) -> None:
        self._version = event.version
        if self._taken is not None:
            take, groups = self._taken
            self.steps.append(self._facts(take, list(groups.values()), event.train_s))
            for group in groups.values():
                for trajectory in group.members:
                    self._group_of.pop(trajectory, None)
        self._taken = None
        self._waited_s = {}
        self._generated = 0
        self._last_published_at = self._now

    def _finished(self, decision: do.Finish) -> None:
        self.is_over = True

    def _extended(self, event: told.StepsExtended) -> None:
        self.is_over, self.num_steps = False, event.steps

    def _end_wait(self) -> None:
        if self._wait is not None:
            reason, began = self._wait
            self._waited_s[reason] = self._waited_s.get(reason, 0.0) + self._now - began
            self._wait = None

    def _trainer(self) -> str:
        if self.is_over:
            return "done"
        if self._taken is not None:
            return f"trains step {self._taken[0].batch + 1}"
        return _WAITS.get(self._wait[0], self._wait[0]) if self._wait is not None else "starts"

    def _facts(self, take: do.Take, groups: list[_Group], train_s: float) -> StepFacts:
        members = [member for group in groups for member in group.members.values()] or [_Member()]
        by_group = [group.rewards for group in groups if group.rewards]
        rewards = [reward for own in by_group for reward in own]
        return StepFacts(
            step=take.batch + 1,
            published_at=self._now,
            step_s=self._now - self._last_published_at,
            train_s=train_s,
            starved_s=self._waited_s.get("starved", 0.0),
            window_s=self._waited_s.get("window", 0.0),
            generated_tokens=self._generated,
            reward=fmean(rewards) if rewards else None,
            reward_std=fmean(map(pstdev, by_group)) if by_group else None,
            zero_variance_share=fmean(len(set(own)) == 1 for own in by_group) if by_group else 1.0,
            mean_tokens=fmean(member.tokens for member in members),
            max_tokens=max(member.tokens for member in members),
            truncated_share=fmean(member.is_truncated for member in members),
            staleness_mean=fmean(take.staleness),
            staleness_max=max(take.staleness),
            num_trajectories=sum(len(group.members) for group in groups),
            values=mean_by_function(member.values for member in members),
        )


def _evaluation_facts(version: int, found: _Evaluation) -> EvaluationFacts:
    return EvaluationFacts(
        version=version,
        num_scored=len(found.rewards),
        reward=fmean(found.rewards),
        values=mean_by_function(found.values),
    )
