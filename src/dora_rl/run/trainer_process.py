"""The trainer's process: it is given batches, replays after a restart, and told when to write a checkpoint.

What it says becomes control's inputs and effects.

The journal knows every batch that was taken. A trainer that starts says which version it holds; every batch
after that is sent again, those that were published as replays. So its death is nobody else's business:
control goes on as if the step took longer.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dora_rl.core import inputs as told
from dora_rl.core.decisions import Hand, Take
from dora_rl.core.instance_seconds import InstanceSeconds
from dora_rl.core.named import Objects
from dora_rl.launch.protocol import Handle, Launch, Place, WorkerSpec
from dora_rl.run import messages as say
from dora_rl.run.evaluations import EvaluationTracker
from dora_rl.run.journalled_groups import group_of
from dora_rl.run.metrics_writer import MetricsWriter
from dora_rl.run.received import CoverBatches, Received, RecordStep, ServeStore
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.worker_deaths import WorkerDeaths, end_if_final, how_it_ended
from dora_rl.store.errors import RunError
from dora_rl.store.journal import Journal

_NAME = "the trainer"


class TrainerProcess:
    """The process of the trainer, and what it has to be told."""

    def __init__(
        self,
        setup: RunSetup,
        layout: LiveLayout,
        journal: Journal,
        deaths: WorkerDeaths,
        metrics: MetricsWriter,
        evaluations: EvaluationTracker,
        *,
        launch: Launch,
        epoch: int = 0,
        lead_anew: Callable[[], int] = lambda: 0,
        handed: Sequence[Hand] = (),
        retired: Sequence[int] = (),
        objects: Objects | None = None,
    ) -> None:
        self._setup = setup
        self._sampling = setup.recipe.sampling
        self._layout = layout
        self._journal = journal
        self._deaths = deaths
        self._metrics = metrics
        self._evaluations = evaluations
        self._launch = launch
        self._epoch = epoch
        self._lead_anew = lead_anew
        self._objects = dict(objects or {})
        self._handed = list(handed)
        """Groups handed over in advance, of the batch that is not taken yet."""
        self._retired = list(retired)
        """Versions to delete from the store: a trainer that starts is told all of them again."""
        self.checkpoint: str | None = None
        """The last checkpoint directory this process has seen written; None before the first."""
        self._is_open = True
        """Whether further steps may begin."""
        self._wants_checkpoint = False
        """Whether a checkpoint is wanted that the trainer has not been told to write."""
        self._is_writing = False
        """Whether the trainer is writing a checkpoint; it may train further steps meanwhile."""
        self.is_ready = False
        self.is_training = False
        """Whether a step was sent whose publication is not journalled yet."""
        self._start_at: float | None = None
        """When a trainer that died is to be started again; None while its process is there."""
        self._start()

    def _start(self) -> None:
        self._start_at = None
        self.is_ready = self.is_training = False
        self._num_busy = 0
        self._has_part = False
        """Whether the trainer has groups of a step that was not sent yet."""
        self._wants_checkpoint |= self._is_writing
        self._is_writing = False
        self._last_words: str | None = None
        devices = self._setup.devices
        worker = WorkerSpec(
            name=_NAME,
            module="dora_rl.run.workers.trainer_main",
            log=str(self._log),
            # Its other ranks are started by the first, within its place.
            place=Place.on(
                *map(devices.rank_device, range(devices.trainer_ranks)), cpus=devices.trainer_threads
            ),
        )
        self.handle = self._launch.start(worker, say.TrainerWord)
        self._heard_at = self._since = time.monotonic()
        self.handle.send(
            say.Begin(
                setup=self._setup,
                store=str(self._layout.versions),
                epoch=self._epoch,
                objects=self._objects,
            )
        )

    @property
    def handles(self) -> list[Handle]:
        """The handle of the trainer's process; none while it waits to be started again."""
        return [self.handle] if self._start_at is None else []

    @property
    def _log(self) -> Path:
        return self._layout.logs / "trainer.log"

    def close(self) -> None:
        """Kill the trainer's process if it is left, without waiting."""
        self.handle.end(within_s=0.0)

    # --- telling --------------------------------------------------------------------------------

    def take(self, take: Take) -> None:
        """Send a taken batch to the trainer; one that is not ready gets it from the journal when it is."""
        finished = [self._journal.group(group) for group in take.groups]
        self._metrics.took(take, finished)
        has_some = {hand.group for hand in self._handed}
        self._handed = []
        if self.is_ready and self._is_open:
            self.is_training, self._has_part = True, False
            self._busy()
            missing = (group for group in finished if group.group not in has_some)
            groups = tuple(group_of(group, self._sampling) for group in missing)
            self.handle.send(say.TrainStep(batch=take.batch, groups=groups))

    def hand(self, hand: Hand) -> None:
        """Send a group of a batch to come, so that training on it begins."""
        self._handed.append(hand)
        if self.is_ready and self._is_open:
            self._add(hand)

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether a checkpoint is wanted or being written."""
        return self._wants_checkpoint or self._is_writing

    def write_checkpoint(self) -> None:
        """Have the last version written as a checkpoint, now or as soon as the one in progress is done."""
        self._wants_checkpoint = True
        # A checkpoint ahead of the journal would hold a step that the journal still waits for.
        # A step that began with some of its groups cannot be written.
        is_between = not self.is_training and not self._has_part
        if self.is_ready and is_between and not self._is_writing:
            self._wants_checkpoint, self._is_writing = False, True
            self._busy()
            self.handle.send(say.WriteCheckpoint())

    def abandon_part(self) -> bool:
        """Have a step forgotten that began with some of its groups, which will be sent again.

        False where it may have changed the weights already.
        """
        if self._has_part and self._setup.recipe.batch.updates > 1:
            return False
        if self._has_part:
            self.handle.send(say.AbandonStep())
            self._has_part = False
        return True

    def leave(self, *, with_checkpoint: bool) -> None:
        """Begin no further step; have a last checkpoint written, or give up one that was not begun."""
        self._is_open = False
        if with_checkpoint:
            self.write_checkpoint()
        else:
            self._wants_checkpoint = False

    def step_recorded(self, effect: RecordStep) -> None:
        """Note that the journal has the version of the step in progress; write a checkpoint if due."""
        self.is_training = False
        self._wants_checkpoint |= effect.is_checkpoint_due
        if self._wants_checkpoint:
            self.write_checkpoint()

    def retire(self, version: int) -> None:
        self._retired.append(version)
        if self.is_ready:
            self.handle.send(say.RetireVersion(version=version))

    def _add(self, hand: Hand) -> None:
        self._has_part = True
        self.handle.send(
            say.HandGroup(batch=hand.batch, group=group_of(self._journal.group(hand.group), self._sampling))
        )

    def _busy(self) -> None:
        if not self._num_busy:
            self._since = self._heard_at = time.monotonic()
        self._num_busy += 1

    # --- listening ------------------------------------------------------------------------------

    def read(self, at: float, seconds: Callable[[], dict[int, InstanceSeconds]] = dict) -> Received:
        """What the trainer said since the last turn, as inputs and effects; has it replaced if it is gone.

        `seconds` gives what the instances said of theirs, which is told together with the end of a step.
        """
        received = Received()
        for message in self.handle.receive():
            self._heard_at = time.monotonic()
            match message:
                case say.Broken():
                    end_if_final(message)
                    self._last_words = message.message
                case say.TrainerReady():
                    self._check_journal(message)
                    received.inputs += self._damage(message, at)
                    self.is_ready = True
                    self._catch_up(message.version)
                    received.effects.append(ServeStore())
                case say.StepTrained():
                    if self._setup.devices.is_elastic:
                        received.inputs.append(told.Trained(at=at))
                case say.StepReplayed():
                    self._done()
                    different = message.num_different or 0
                    received.inputs.append(told.Replayed(at=at, batch=message.batch, num_different=different))
                case say.StepPublished():
                    self._done()
                    received.payloads.append(self._metrics.published(message, at))
                    self._deaths.forgive()
                    recipe, version = self._setup.recipe, message.batch + 1
                    received.inputs.append(
                        told.Published(
                            at=at,
                            version=version,
                            train_s=message.train_s,
                            ahead_s=message.ahead_s,
                            publish_s=message.publish_s,
                            instances=seconds(),
                        )
                    )
                    received.inputs += self._evaluations.due(version, at)
                    is_due = version == recipe.steps or version % recipe.checkpoints.every == 0
                    received.effects.append(RecordStep(is_checkpoint_due=is_due))
                case say.CheckpointWritten():
                    self._done()
                    self._is_writing = False
                    self.checkpoint = message.directory
                    if self._wants_checkpoint:
                        self.write_checkpoint()
                    received.effects.append(CoverBatches(version=message.version, oldest=message.oldest))
        self._restart_if_gone()
        return received

    def _done(self) -> None:
        self._num_busy -= 1
        self._since = time.monotonic()

    def _check_journal(self, ready: say.TrainerReady) -> None:
        """A RunError where there are versions that the journal cannot have led to: it has lost its end.

        One may be ahead of it: published, and not written down when the run was cut short.
        """
        journal = self._journal
        known = journal.newest_version + journal.is_training
        if max(ready.version, ready.newest) > known:
            raise RunError(
                f"{journal.path} has lost its end: it leads to version {known}, and version "
                f"{max(ready.version, ready.newest)} was trained",
                hint=f"put it back from a copy, with {journal.path.name}-wal, or start another run from the "
                "last checkpoint of this one: --set model=CHECKPOINT",
            )

    def _damage(self, ready: say.TrainerReady, at: float) -> list[told.CheckpointDamaged]:
        """Newer checkpoints that the trainer could not use, for the record; another will replace them.

        A RunError where the journal no longer has what the one that it could use lacks.
        """
        if ready.version < self._journal.oldest_start:
            problems = "; ".join(ready.damaged) or "there is none"
            raise RunError(
                f"no checkpoint is left that the run could go on from: {problems}",
                hint="restore one, or start another run from the model of one: --set model=CHECKPOINT",
            )
        self._wants_checkpoint |= bool(ready.damaged)
        for problem in ready.damaged:
            self._deaths.write_down(f"{problem}; training goes on from version {ready.version}")
        return [told.CheckpointDamaged(at=at, problem=each, version=ready.version) for each in ready.damaged]

    def _catch_up(self, version: int) -> None:
        """Send every batch that was taken after the version the trainer holds; none where it is the first."""
        for retired in self._retired:
            self.handle.send(say.RetireVersion(version=retired))
        for batch in self._journal.batches_after(version):
            if batch.is_published:
                self._busy()
                groups = tuple(group_of(group, self._sampling) for group in batch.groups)
                self.handle.send(say.TrainStep(batch=batch.number, groups=groups, is_replay=True))
            else:
                numbers = tuple(group.group for group in batch.groups)
                staleness = tuple(batch.number - group.version for group in batch.groups)
                self.take(Take(batch=batch.number, groups=numbers, staleness=staleness))
        if self._wants_checkpoint:
            self.write_checkpoint()
        if self._is_open:
            for hand in self._handed:
                self._add(hand)

    # --- deaths ---------------------------------------------------------------------------------

    def _restart_if_gone(self) -> None:
        """Start the trainer again if it died, hangs or takes too long to start; at once, or after a pause."""
        if self._start_at is not None:
            if time.monotonic() >= self._start_at:
                self._start()
            return
        reason = self._trouble()
        if reason is not None:
            self.handle.end(within_s=0.0)
            # Where its machine is cut off it may be at work still: what it would write is refused.
            self._epoch = self._lead_anew()
            self.is_ready = self.is_training = self._has_part = False
            pause_s = self._deaths.count(_NAME, reason, self._log)
            self._start_at = time.monotonic() + pause_s
            if not pause_s:
                self._start()

    def _trouble(self) -> str | None:
        now, patience = time.monotonic(), self._setup.recipe.patience
        if not self.handle.is_alive:
            return how_it_ended(self.handle.end(within_s=1.0), self._last_words, self._log)
        if self.is_ready and not self._num_busy:
            return None
        limit_s = patience.step_s if self.is_ready else patience.start_s
        if now - self._since > limit_s:
            return f"took more than {limit_s:g} s {'for a step' if self.is_ready else 'to start'}"
        if not self.handle.is_placed:
            return None
        silence_s = self._setup.recipe.control.silence_s
        return f"was silent for {silence_s:g} s" if now - self._heard_at > silence_s else None
