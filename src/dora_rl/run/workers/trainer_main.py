"""The process of the trainer: `python -m dora_rl.run.workers.trainer_main ADDRESS`. Groups in, versions out.

It starts from the newest checkpoint and is told every batch after it, those that were published before marked
as replays: they are trained on again and published no more. A version is said to be there once it is durable.
Where the trainer has several ranks, this is rank 0: it starts the others, and is the only one that speaks.
"""

import os
import sys
from pathlib import Path

from dora_rl.core.fence import Fence
from dora_rl.launch.breaking import telling_why
from dora_rl.launch.channel import Channel
from dora_rl.launch.local import LocalLaunch
from dora_rl.run import messages as say
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.workers.followers import Followers


def main(address: str) -> None:
    """Open the trainer where it left off, say that it is ready, and obey commands."""
    channel = Channel.connect(address, say.TrainerCommand)
    begin = channel.receive()
    assert isinstance(begin, say.Begin), f"the first message says what to open: {begin}"
    # Of an earlier trainer, that nobody may take for this one's.
    rendezvous = LiveLayout(root=Path(begin.setup.run_directory)).rendezvous
    rendezvous.unlink(missing_ok=True)
    # Of this process's group: whoever ends that ends every rank.
    with telling_why(channel), Followers(channel, begin, LocalLaunch(in_own_group=False)) as followers:
        with channel.kept_alive(begin.setup.recipe.patience.start_s):
            # Torch takes seconds to import; the other ranks are at it already.
            from dora_rl.run.workers.trainer_worker import TrainerWorker, open_rank
            from dora_rl.weights.atomic_files import Files
            from dora_rl.weights.store import Store
        fence = Fence(directory=LiveLayout(root=Path(begin.setup.run_directory)).epochs, epoch=begin.epoch)
        with Store(Path(begin.store), files=Files(fence)) as store:
            with channel.kept_alive(begin.setup.recipe.patience.start_s):
                steps = open_rank(begin)
                trainer = steps.trainer
                worker = TrainerWorker(channel, begin.setup, steps, store, followers, fence)
                if not trainer.version:
                    # Put together by all ranks, also where it is published already.
                    initial = trainer.served_tensors()
                    if not store.versions:
                        store.publish(0, initial)
                damaged = tuple(steps.damaged.values())
                ready = say.TrainerReady(
                    version=trainer.version,
                    pid=os.getpid(),
                    damaged=damaged,
                    newest=max(store.versions, default=0),
                )
                channel.send(ready)
            worker.run()
    rendezvous.unlink(missing_ok=True)
    channel.leave()


if __name__ == "__main__":
    main(sys.argv[1])
