"""The process of the trainer: `python -m dora_rl.runtime.workers.trainer FD`. Groups in, versions out.

It starts from the newest checkpoint and is told every batch after it, those that were published before marked
as replays: they are trained on again and published no more. A version is said to be there once it is durable.
"""

import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dora_rl.runtime import messages as say
from dora_rl.runtime.layout import LiveLayout
from dora_rl.runtime.setup import LiveSetup
from dora_rl.runtime.workers.breaking import telling_why
from dora_rl.runtime.workers.channel import Channel
from dora_rl.runtime.workers.checkpoints import load_newest, write_checkpoint
from dora_rl.trainer.opening import open_trainer
from dora_rl.trainer.trainer import Trainer
from dora_rl.weights.store import Store


class TrainerWorker:
    """One trainer, obeying."""

    def __init__(self, channel: Channel, setup: LiveSetup, trainer: Trainer, store: Store) -> None:
        self._channel = channel
        self._setup = setup
        self._trainer = trainer
        self._store = store
        self._layout = LiveLayout(root=Path(setup.run_directory))
        self._added: set[int] = set()
        """Groups of the step in progress."""
        self._busy_s = 0.0
        self._obey: dict[type, Callable[[Any], None]] = {
            say.AddGroup: self._add,
            say.TrainStep: self._train,
            say.WriteCheckpoint: self._checkpoint,
            say.RetireVersion: self._retire,
        }

    def run(self) -> None:
        """Until told to stop."""
        while not isinstance(command := self._channel.receive(), say.Stop):
            with self._channel.kept_alive(self._setup.patience.step_s):
                self._obey[type(command)](command)

    def _add(self, command: say.AddGroup) -> None:
        began = time.monotonic()
        self._begin(command.batch)
        self._added.add(command.group.id)
        self._trainer.add([command.group])
        self._busy_s += time.monotonic() - began

    def _begin(self, batch: int) -> None:
        assert batch == self._trainer.version, f"batch {batch} for a trainer of {self._trainer.version}"
        if not self._added:
            self._trainer.begin_step(self._setup.batch.groups)

    def _train(self, command: say.TrainStep) -> None:
        began = time.monotonic()
        self._begin(command.batch)
        self._trainer.add([group for group in command.groups if group.id not in self._added])
        metrics = self._trainer.finish_step()
        train_s = time.monotonic() - began + self._busy_s
        self._added, self._busy_s = set(), 0.0
        began = time.monotonic()
        num_different = self._publish()
        self._channel.send(
            say.StepTrained(
                batch=command.batch,
                train_s=train_s,
                publish_s=time.monotonic() - began,
                metrics={name: value if math.isfinite(value) else None for name, value in metrics.items()},
                num_different=num_different,
                is_replay=command.is_replay,
            )
        )

    def _publish(self) -> int | None:
        """Make the version durable; one that is already is final, and what differs is counted."""
        version, tensors = self._trainer.version, self._trainer.served_tensors()
        newest = max(self._store.versions, default=-1)
        if version > newest:
            self._store.publish(version, tensors)
            return None
        if version not in self._store.versions:
            return None  # Retired: nobody can compare any more.
        published = self._store.fetch(version)
        return sum(int((published[name] != own.cpu()).sum()) for name, own in tensors.items())

    def _checkpoint(self, command: say.WriteCheckpoint) -> None:
        directory = write_checkpoint(
            self._trainer,
            self._layout.checkpoints,
            model=Path(self._setup.model),
            kept_states=self._setup.kept_trainer_states,
        )
        self._channel.send(say.CheckpointWritten(version=self._trainer.version, directory=str(directory)))

    def _retire(self, command: say.RetireVersion) -> None:
        if command.version in self._store.versions[:-1]:
            self._store.retire(command.version)

    def ready(self) -> say.TrainerReady:
        """The initial version is published like every other."""
        if not self._store.versions:
            self._store.publish(0, self._trainer.served_tensors())
        return say.TrainerReady(version=self._trainer.version, pid=os.getpid())


def _opened(setup: LiveSetup) -> Trainer:
    trainer = open_trainer(
        Path(setup.model),
        setup.trainer_config,
        device=setup.devices.trainer_device,
        max_response_tokens=setup.max_new_tokens,
    )
    load_newest(trainer, LiveLayout(root=Path(setup.run_directory)).checkpoints)
    return trainer


def main(fd: int) -> None:
    """Open the trainer where it left off, say so, and obey."""
    channel = Channel(fd, say.TrainerCommand)
    begin = channel.receive()
    assert isinstance(begin, say.Begin), f"the first message says what to open: {begin}"
    setup = begin.setup
    torch.set_num_threads(setup.devices.trainer_threads)
    with telling_why(channel), Store(Path(begin.store)) as store:
        with channel.kept_alive(setup.patience.start_s):
            worker = TrainerWorker(channel, setup, _opened(setup), store)
            channel.send(worker.ready())
        worker.run()
    channel.leave()


if __name__ == "__main__":
    main(int(sys.argv[1]))
