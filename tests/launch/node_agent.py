"""The agent of a worker as a process: its order is its standard input."""

import sys

import msgspec

from dora_rl.launch.agent import WorkerOrder, keep_worker

if __name__ == "__main__":
    keep_worker(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=WorkerOrder))
