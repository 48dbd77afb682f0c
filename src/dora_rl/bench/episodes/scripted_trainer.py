"""The process of a trainer that is never given a batch: `python -m dora_rl.bench.episodes.scripted_trainer`.

It says that it is ready, and waits for the end: the episodes of the bench do not end.
"""

import os
import sys

from dora_rl.launch.channel import Channel
from dora_rl.run import messages as say


def main(address: str) -> None:
    """Say that version 0 is there; a batch would be a mistake of the bench."""
    channel = Channel.connect(address, say.TrainerCommand)
    channel.receive()
    channel.send(say.TrainerReady(version=0, pid=os.getpid()))
    while not isinstance(command := channel.receive(), say.Stop):
        assert not isinstance(command, say.TrainStep), "nothing ends in this bench"
    channel.leave()


if __name__ == "__main__":
    main(sys.argv[1])
