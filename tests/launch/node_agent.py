"""What a node of a cluster would run: `python node_agent.py MODULE ADDRESS` starts a worker.

Prints the worker's number and, when it has ended, its exit code. Once nobody holds this process's input any
more the worker is killed with all it started.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def main() -> None:
    # What the worker prints goes to stderr: standard output is for whoever asked for it.
    command = [sys.executable, "-m", *sys.argv[1:]]
    worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
    print(worker.pid, flush=True)

    def report() -> None:
        code = worker.wait()
        with suppress(BrokenPipeError):
            print(code, flush=True)

    reporter = threading.Thread(target=report)
    reporter.start()
    sys.stdin.buffer.read()
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    reporter.join()
    os._exit(0)


if __name__ == "__main__":
    main()
