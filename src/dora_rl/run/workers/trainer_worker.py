"""The trainer of a run, alone or as several ranks: what each does of a command, and what only the first does.

Every rank is told the same commands in the same order and takes part in whatever puts weights together. Only
rank 0 publishes, writes files and speaks.
"""

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from msgspec.structs import replace

from dora_rl.core.fence import Fence
from dora_rl.core.user_cache import keep_compiled
from dora_rl.launch.breaking import telling_why
from dora_rl.launch.channel import Channel
from dora_rl.model.language_model import load_model
from dora_rl.run import messages as say
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.workers.checkpoints import (
    PendingCheckpoint,
    load_newest,
    remove_leftovers,
    take_checkpoint,
    write_checkpoint,
)
from dora_rl.run.workers.followers import Followers
from dora_rl.run.workers.rendezvous import join
from dora_rl.trainer.protocol import PolicyTrainer
from dora_rl.trainer.train_batch import TrainGroup
from dora_rl.trainer.trainer_factory import trainer_of
from dora_rl.weights.protocol import VersionStore


class RankSteps:
    """One rank's trainer, and the step it is in."""

    def __init__(self, setup: RunSetup, trainer: PolicyTrainer, damaged: dict[Path, str]) -> None:
        self._setup = setup
        self.trainer = trainer
        self.damaged = damaged
        """Checkpoints that could not be used, and what is wrong with each, until the next is taken."""
        self._layout = LiveLayout(root=Path(setup.run_directory))
        self._batch: int | None = None
        """The batch of the last step that was begun; None where that was abandoned."""
        self._added: set[int] = set()
        """Ids of the groups taken in for that step."""
        self._busy_s = 0.0
        """Seconds that taking them in took."""

    def add(self, batch: int, groups: Sequence[TrainGroup]) -> None:
        """Take in groups of a step; once it has all of them its updates are made, or queued on the device."""
        began = time.monotonic()
        assert batch == self.trainer.version, f"batch {batch} for a trainer of {self.trainer.version}"
        if batch != self._batch:
            self.trainer.begin_step(self._setup.recipe.batch.groups)
            self._batch, self._added, self._busy_s = batch, set(), 0.0
        missing = [group for group in groups if group.id not in self._added]
        self._added |= {group.id for group in missing}
        self.trainer.add(missing)
        self._busy_s += time.monotonic() - began

    def busy_with(self, batch: int) -> float:
        """Seconds that taking in groups of this batch took so far."""
        return self._busy_s if batch == self._batch else 0.0

    def abandon(self) -> None:
        """Undo what was taken in since the last step, as if its first group had not come."""
        if self._batch == self.trainer.version:
            self.trainer.abandon_step()
            self._batch = None

    def rehearse(self) -> None:
        """Have on a GPU compiled what the first step needs, while the first groups are generated."""
        if self._setup.devices.rank_device(0) != "cpu":
            self.trainer.rehearse()

    def take_checkpoint(self) -> PendingCheckpoint | None:
        """Take a checkpoint of the last version, for rank 0 to write."""
        damaged, self.damaged = self.damaged, {}
        return take_checkpoint(self.trainer, self._layout.checkpoints, damaged)


class TrainerWorker:
    """Rank 0 of the trainer: obeys, has the other ranks follow, publishes and speaks."""

    def __init__(
        self,
        channel: Channel,
        setup: RunSetup,
        steps: RankSteps,
        store: VersionStore,
        followers: Followers,
        fence: Fence,
    ) -> None:
        self._channel = channel
        self._setup = setup
        self._steps = steps
        self._store = store
        self._followers = followers
        self._fence = fence
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._writing: Future[None] = self._writer.submit(steps.trainer.prepare_checkpoints)

    def run(self) -> None:
        """Obey commands until told to stop."""
        with self._channel.kept_alive(self._setup.recipe.patience.step_s):
            self._steps.rehearse()
        while not isinstance(command := self._channel.receive(), say.Stop):
            with self._channel.kept_alive(self._setup.recipe.patience.step_s):
                # Its owner may lead the run no more, and not know it.
                self._fence.check()
                if isinstance(command, say.WriteCheckpoint):
                    # One at a time: all ranks must see alike which are there.
                    self._writing.result()
                # Not before it is this one's turn: nobody waits in a collective while rank 0 publishes.
                self._followers.tell(command)
                match command:
                    case say.HandGroup(batch=batch, group=group):
                        self._steps.add(batch, [group])
                    case say.AbandonStep():
                        self._steps.abandon()
                    case say.TrainStep():
                        self._train(command)
                    case say.WriteCheckpoint():
                        self._checkpoint()
                    case say.RetireVersion(version=version):
                        if version in self._store.versions[:-1]:
                            self._store.retire(version)
                    case _:
                        raise AssertionError(f"{command} is no command to the trainer")

    def _train(self, command: say.TrainStep) -> None:
        """Train a step and make its version durable; one that was published before is final, and compared."""
        steps, store, batch = self._steps, self._store, command.batch
        ahead_s = steps.busy_with(batch)
        steps.add(batch, command.groups)
        if not command.is_replay:
            self._channel.send(say.StepTrained(batch=batch))
        began = time.monotonic()
        metrics = steps.trainer.finish_step()
        trained = time.monotonic()

        version, tensors = steps.trainer.version, steps.trainer.served_tensors()
        num_different = None
        if version > max(store.versions, default=-1):
            store.publish(version, tensors)
        elif version in store.versions:  # Else it is retired, and nobody can compare any more.
            published = store.fetch(version, str(next(iter(tensors.values())).device))
            num_different = sum(int((published[name] != own).sum()) for name, own in tensors.items())

        if command.is_replay:
            self._channel.send(say.StepReplayed(batch=batch, num_different=num_different))
            return
        self._channel.send(
            say.StepPublished(
                batch=batch,
                train_s=trained - began + steps.busy_with(batch),
                publish_s=time.monotonic() - trained,
                ahead_s=ahead_s,
                metrics={name: value if math.isfinite(value) else None for name, value in metrics.items()},
            )
        )

    def _checkpoint(self) -> None:
        pending = self._steps.take_checkpoint()
        assert pending is not None, "rank 0 writes"
        if pending.is_apart:
            self._writing = self._writer.submit(self._write, pending)
        else:
            self._write(pending)

    def _write(self, pending: PendingCheckpoint) -> None:
        """Write a checkpoint, beside the next steps where possible; a failure ends the process."""
        setup, channel = self._setup, self._channel
        with telling_why(channel), channel.kept_alive(setup.recipe.patience.step_s):
            kept, model = setup.recipe.checkpoints, Path(setup.model_directory)
            oldest = write_checkpoint(pending, model=model, kept=kept, fence=self._fence)
            channel.send(
                say.CheckpointWritten(
                    version=pending.version, directory=str(pending.directory), oldest=oldest
                )
            )


def follow(channel: Channel, begin: say.Begin) -> None:
    """Be another rank: obey the same commands until told to stop, and let rank 0 speak."""
    steps = open_rank(begin)
    if not steps.trainer.version:
        steps.trainer.served_tensors()
    steps.rehearse()
    while not isinstance(command := channel.receive(), say.Stop):
        match command:
            case say.HandGroup():
                steps.add(command.batch, [command.group])
            case say.AbandonStep():
                steps.abandon()
            case say.TrainStep():
                steps.add(command.batch, command.groups)
                steps.trainer.finish_step()
                steps.trainer.served_tensors()
            case say.WriteCheckpoint():
                steps.take_checkpoint()
            case say.RetireVersion():
                pass  # The store is rank 0's.


def open_rank(begin: say.Begin) -> RankSteps:
    """Open one rank's part of the trainer, where the newest checkpoint left off."""
    setup, rank = begin.setup, begin.number
    keep_compiled()
    layout = LiveLayout(root=Path(setup.run_directory))
    torch.set_num_threads(setup.devices.trainer_threads)
    ranks = join(setup.devices, rank, rendezvous=layout.rendezvous, timeout_s=setup.recipe.patience.step_s)
    config, device = setup.trainer, setup.devices.rank_device(rank)
    if config.lora is not None and config.lora.adapter is not None:
        # The run's own copy, wherever it came from.
        config = replace(config, lora=replace(config.lora, adapter=str(layout.initial_adapter)))
    trainer = trainer_of(
        load_model(
            Path(setup.model_directory),
            # Of a run that was prepared when there was no other.
            "native" if config.model == "auto" else config.model,
            device=device,
            dtype=torch.float32,
            is_filled_up=config.attention == "padded",
        ),
        config,
        ranks=ranks,
        max_response_tokens=setup.max_new_tokens,
        objects=begin.objects,
    )
    if trainer.is_first:
        remove_leftovers(layout.checkpoints)
    return RankSteps(setup, trainer, load_newest(trainer, layout.checkpoints))
