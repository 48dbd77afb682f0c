"""The accountant of a run's seconds: where those of the instances and of the trainer went.

Watches inputs and decisions, live, simulated or read from an event log, so that runs are compared like with
like. Which requests an instance has, what it waits for and what the trainer does follow from the stream;
what it did instead of decoding is what it measured itself (`Published.instances`). A log without these counts
all seconds with requests as generating.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input
from dora_rl.core.record import Record
from dora_rl.costs.batch_waits import BatchWaits, Lack
from dora_rl.costs.instance_account import InstanceAccount
from dora_rl.costs.request_places import RequestPlace, RequestPlaces
from dora_rl.costs.seconds_spent import (
    WAITS,
    Seconds,
    SecondsSpent,
    Spent,
    StepSeconds,
    add_seconds,
    in_order,
)

_LACKS = {Lack.ENVIRONMENT: Spent.ENVIRONMENT, Lack.REWARD: Spent.REWARD}
_REASONS = {"starved": Spent.BATCH, "window": Spent.WINDOW}


class _Step(Struct, kw_only=True):
    """The seconds of one step, as far as they are booked."""

    begin: float
    instances: Seconds = field(default_factory=dict)
    behind: dict[int, float] = field(default_factory=dict)
    trainer: Seconds = field(default_factory=dict)


class SecondsMeter:
    """Follows instances and trainer through a run; its `watch` is a watcher of the run."""

    def __init__(self, *, batch_groups: int, group_size: int) -> None:
        self._now = 0.0
        self._newest = 0
        self._instances: dict[int, InstanceAccount] = {}
        self._steps = [_Step(begin=0.0)]
        self._by_version: dict[int, float] = {}
        self._awaited_at: dict[int, int] = {}
        """The instance of each trajectory that is on its way or whose environment has the turn."""
        self._places = RequestPlaces(self._requests_changed)
        self._waits = BatchWaits(batch_groups=batch_groups, group_size=group_size)
        self._reason = "starved"
        """What control last said that the trainer waits for."""
        self._is_over = False
        self._trainer = Spent.STARTING
        self._trainer_since = 0.0
        self._took_at: float | None = None
        """When the batch of the step in flight was taken."""
        self._handlers: dict[type[Record], Callable[[Any], None]] = {
            told.InstanceJoined: self._joined,
            told.InstanceLost: lambda e: self._at(e.instance).leave(),
            do.Restart: lambda d: self._at(d.instance).leave(),
            told.Lent: lambda e: self._lend(e.instance, Spent.TRAINING),
            do.Return: lambda d: self._lend(d.instance, Spent.SWITCHING),
            told.Returned: lambda e: self._lend(e.instance, None),
            do.Load: lambda d: self._at(d.instance).loading.add(d.version),
            do.Interrupt: lambda d: self._at(d.instance).loading.add(d.version),
            told.Loaded: lambda e: self._at(e.instance).loading.discard(e.version),
            do.Move: self._moving,
            told.TurnEnded: self._turned,
            **dict.fromkeys(
                (
                    told.Moved,
                    told.MoveFailed,
                    told.EnvironmentReplied,
                    told.EnvironmentFailed,
                    told.EpisodeEnded,
                    told.Ended,
                    do.Start,
                    do.Evict,
                    do.Abort,
                ),
                self._settled,
            ),
            do.Wait: self._waiting,
            do.Take: self._took,
            told.Published: self._published,
            told.StepLost: self._lost,
            do.Finish: lambda d: self._over(is_over=True),
            told.StepsExtended: lambda e: self._over(is_over=False),
        }

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        """Take in one input and its decisions."""
        self._now = event.at
        for record in (event, *decisions):
            handler = self._handlers.get(type(record))
            if handler is not None:
                handler(record)
            self._places.follow(record)
            self._waits.follow(record)
        if (doing := self._doing()) is not self._trainer:
            self._pass_time()
            self._trainer = doing

    def result(self) -> SecondsSpent:
        """The account up to the last input."""
        self._book()
        ends = [*(step.begin for step in self._steps[1:]), self._now]
        steps = [
            StepSeconds(
                step=number,
                is_published=number < len(self._steps),
                wall_s=end - step.begin,
                instances=in_order(step.instances),
                behind=dict(sorted(step.behind.items())),
                trainer=in_order(step.trainer),
            )
            for number, (step, end) in enumerate(zip(self._steps, ends, strict=True), start=1)
        ]
        return SecondsSpent.of(
            [step for step in steps if step.wall_s > 0.0],
            num_instances=len(self._instances),
            by_version=dict(sorted(self._by_version.items())),
        )

    # --- time ---

    def _doing(self) -> Spent:
        """What the trainer does now, or what it waits for."""
        if self._is_over:
            return Spent.ENDING
        if self._took_at is not None:
            return Spent.TRAINING
        if not self._instances:
            return Spent.STARTING
        if self._reason == "prompts":
            return Spent.PROMPTS
        return _LACKS.get(self._waits.lack(self._reason), _REASONS[self._reason])

    def _at(self, instance: int) -> InstanceAccount:
        """The account of an instance that is about to change, its time counted up to now."""
        account = self._instances[instance]
        # One that may start nothing waits for what the trainer waits for; or for the trainer.
        idles_for = Spent.TRAINER if self._trainer is Spent.TRAINING else self._trainer
        account.pass_time(self._now, idles_for)
        return account

    def _pass_time(self) -> None:
        for instance in self._instances:
            self._at(instance)
        add_seconds(self._steps[-1].trainer, self._trainer, self._now - self._trainer_since)
        self._trainer_since = self._now

    def _book(self) -> None:
        """Write down all seconds up to now as those of the present step."""
        self._pass_time()
        step = self._steps[-1]
        for account in self._instances.values():
            seconds, decoded = account.booked()
            for spent, amount in seconds.items():
                add_seconds(step.instances, spent, amount)
            for (version, is_evaluation), amount in decoded.items():
                add_seconds(step.instances, Spent.EVALUATING if is_evaluation else Spent.GENERATING, amount)
                if not is_evaluation:
                    behind = self._newest - version
                    step.behind[behind] = step.behind.get(behind, 0.0) + amount
                    self._by_version[version] = self._by_version.get(version, 0.0) + amount

    # --- instances ---

    def _joined(self, event: told.InstanceJoined) -> None:
        if event.instance not in self._instances:
            self._instances[event.instance] = InstanceAccount(since=self._steps[-1].begin)
            for step, following in zip(self._steps, self._steps[1:], strict=False):
                add_seconds(step.instances, Spent.STARTING, following.begin - step.begin)
        self._at(event.instance).away = None

    def _lend(self, instance: int, away: Spent | None) -> None:
        self._at(instance).away = away

    def _requests_changed(self, place: RequestPlace, change: int) -> None:
        self._at(place.instance).change((place.version, place.is_evaluation), change)

    def _moving(self, move: do.Move) -> None:
        is_waiting = move.trajectory in self._at(move.source).waiting
        self._settled(move)
        target = self._at(move.target)
        (target.waiting if is_waiting else target.arriving).add(move.trajectory)
        self._awaited_at[move.trajectory] = move.target

    def _turned(self, event: told.TurnEnded) -> None:
        self._settled(event)
        self._at(event.instance).waiting.add(event.trajectory)
        self._awaited_at[event.trajectory] = event.instance

    def _settled(self, record: Any) -> None:
        """A request is not on its way any more, nor does it wait for its environment."""
        instance = self._awaited_at.pop(record.trajectory, None)
        if instance is not None:
            account = self._at(instance)
            account.waiting.discard(record.trajectory)
            account.arriving.discard(record.trajectory)

    # --- trainer ---

    def _waiting(self, wait: do.Wait) -> None:
        self._reason = wait.reason

    def _took(self, take: do.Take) -> None:
        self._took_at = self._now

    def _published(self, event: told.Published) -> None:
        """The step is over: its seconds are those of training and publishing, and the rest."""
        for instance, said in event.instances.items():
            if instance in self._instances:
                self._instances[instance].heard(said)
        self._book()
        if self._took_at is not None:
            step_s = self._now - self._took_at
            publish_s = min(event.publish_s, step_s)
            self._rebook(Spent.TRAINING, Spent.PUBLISHING, publish_s)
            self._rebook(Spent.TRAINING, Spent.HANDING_OVER, max(0.0, step_s - publish_s - event.train_s))
        waited = {wait: self._steps[-1].trainer.get(wait, 0.0) for wait in WAITS}
        # What was trained before the batch was complete was no wait.
        share = min(1.0, event.ahead_s / (sum(waited.values()) or 1.0))
        for wait, seconds in waited.items():
            self._rebook(wait, Spent.TRAINING, share * seconds)
        self._newest, self._took_at = event.version, None
        self._steps.append(_Step(begin=self._now))

    def _lost(self, event: told.StepLost) -> None:
        """The step in flight is lost, and its seconds with it."""
        if self._took_at is not None:
            self._pass_time()
            self._rebook(Spent.TRAINING, Spent.OTHER, self._now - self._took_at)
            self._took_at = None

    def _rebook(self, before: Spent, after: Spent, seconds: float) -> None:
        trainer = self._steps[-1].trainer
        add_seconds(trainer, before, -seconds)
        add_seconds(trainer, after, seconds)

    def _over(self, *, is_over: bool) -> None:
        self._is_over = is_over
