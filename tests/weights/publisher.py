"""Publishes and retires versions until it is killed; run as `python -m weights.publisher DIRECTORY`.

For every line on stdin one child is forked, its process number printed, and `ended` when it is no more. A
child prints `published N` after a version, and `retires N` before it lets one go.
"""

import os
import signal
import sys
from pathlib import Path

import torch

from dora_rl.weights.chain import AnchorPolicy
from dora_rl.weights.store import Store
from weights.versions import history

WINDOW = 4


def publish(directory: Path, versions: list) -> None:
    store = Store(directory, policy=AnchorPolicy(every=3, chain_share=1e9))
    first = max(store.versions, default=-1) + 1
    for number in range(first, len(versions)):
        store.publish(number, versions[number])
        say(f"published {number}")
        for old in store.versions[:-WINDOW]:
            say(f"retires {old}")
            store.retire(old)


def say(line: str) -> None:
    # One write, so that a death cannot leave half a line.
    os.write(1, f"{line}\n".encode())


def main() -> None:
    torch.set_num_threads(1)
    versions = history(400)
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            say(str(os.getpid()))
            publish(Path(sys.argv[1]), versions)
            # All versions are out; it still has to be there to be killed.
            signal.pause()
        os.waitpid(pid, 0)
        say("ended")


if __name__ == "__main__":
    main()
