"""The process of a trainer that computes nothing: `python -m dora_rl.bench.episodes.scripted_trainer`.

It speaks as the trainer does: says where it stands, publishes a version for each batch, writes checkpoints,
and after a restart is sent again what the last one lacks. A checkpoint is a number in a file.
"""

import os
import sys
from pathlib import Path

from dora_rl.launch.channel import Channel
from dora_rl.run import messages as say
from dora_rl.run.run_layout import LiveLayout
from dora_rl.store.durable import write_atomically

_FILE = "scripted_version"


class ScriptedTrainer:
    """Counts the versions of a run, and keeps the last that a checkpoint has."""

    def __init__(self, channel: Channel, directory: Path) -> None:
        self._channel = channel
        self._file = directory / _FILE
        directory.mkdir(exist_ok=True)
        self._version = int(self._file.read_text()) if self._file.exists() else 0

    def run(self) -> None:
        """Say where it stands, and obey commands until told to stop."""
        self._channel.send(say.TrainerReady(version=self._version, pid=os.getpid()))
        while not isinstance(command := self._channel.receive(), say.Stop):
            match command:
                case say.TrainStep():
                    self._train(command)
                case say.WriteCheckpoint():
                    write_atomically(self._file, str(self._version).encode())
                    # All batches stay: whoever looks at the journal sees every token.
                    self._channel.send(
                        say.CheckpointWritten(
                            version=self._version, directory=str(self._file.parent), oldest=0
                        )
                    )
                case _:
                    pass  # Groups come with their step too, and no version takes room.

    def _train(self, step: say.TrainStep) -> None:
        assert step.batch == self._version, f"batch {step.batch} for a trainer of {self._version}"
        self._version += 1
        if step.is_replay:
            self._channel.send(say.StepReplayed(batch=step.batch, num_different=0))
            return
        self._channel.send(say.StepTrained(batch=step.batch))
        self._channel.send(say.StepPublished(batch=step.batch, train_s=0.0, publish_s=0.0))


def main(address: str) -> None:
    """Be the trainer of the run that the first message names."""
    channel = Channel.connect(address, say.TrainerCommand)
    begin = channel.receive()
    assert isinstance(begin, say.Begin), f"the first message says what to open: {begin}"
    ScriptedTrainer(channel, LiveLayout(root=Path(begin.setup.run_directory)).checkpoints).run()
    channel.leave()


if __name__ == "__main__":
    main(sys.argv[1])
