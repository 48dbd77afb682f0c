"""The process of rank 1 and above: `python -m dora_rl.run.workers.rank ADDRESS`. Started by rank 0.

It does what rank 0 is told, in step with it. It publishes nothing and says only that it lives, or what broke.
"""

import math
import sys
import time
import traceback

from dora_rl.core.errors import DoraError
from dora_rl.launch.breaking import broken
from dora_rl.launch.channel import Channel
from dora_rl.run import messages as say
from dora_rl.run.workers.followers import SETTLING_S


def main(address: str) -> None:
    """Open this rank's part of the trainer, and follow rank 0's commands."""
    channel = Channel.connect(address, say.TrainerCommand)
    begin = channel.receive()
    assert isinstance(begin, say.Begin), f"the first message says what to open: {begin}"
    with channel.kept_alive(math.inf):
        try:
            # Torch takes seconds to import; that rank 0 is gone is noticed before.
            from dora_rl.run.workers.trainer_worker import follow

            follow(channel, begin)
        except DoraError as error:
            traceback.print_exc()
            channel.send(broken(error))
            channel.leave(1)
        except BaseException as error:
            # Anything: the others wait for this one. If it only saw another die, rank 0 says so first.
            traceback.print_exc()
            time.sleep(SETTLING_S)
            channel.send(say.Broken(message=traceback.format_exception_only(error)[-1].strip()))
            channel.leave(1)
        channel.leave()


if __name__ == "__main__":
    main(sys.argv[1])
