"""A Ray cluster of several nodes on one machine, each of which can be killed like a machine of its own.

It lives in a process of its own (`python raylets.py CPUS CPUS ...`), told by lines of its input what to do,
and ends with it.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Raylets:
    """A cluster: the first node is the head, where an orchestrator belongs."""

    def __init__(self, *cpus: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), *map(str, cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        started = self._answer()
        self.address: str = started["address"]
        self.nodes: list[str] = started["nodes"]

    def add(self, cpus: float, **labels: str) -> str:
        """Have a node join; returns its name."""
        self.nodes.append(self._ask("add", cpus, labels)["node"])
        return self.nodes[-1]

    def kill(self, node: str) -> None:
        """Kill a node with all that runs on it, at once, as if its power was cut."""
        self._ask("kill", node)
        self.nodes.remove(node)

    def kill_raylet(self, node: str) -> None:
        """Kill Ray's own process of a node and nothing else."""
        self._ask("kill_raylet", node)
        self.nodes.remove(node)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30.0)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, *command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError("the cluster is gone")


def main(cpus: list[float]) -> None:
    import psutil
    from ray.cluster_utils import Cluster

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # What is needed is in memory in megabytes, on a machine that others use too.
    few = {"include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], **few})
    nodes = {cluster.head_node.node_id: cluster.head_node}

    def add(cpus: float, labels: dict[str, str]) -> str:
        made = cluster.add_node(num_cpus=cpus, labels=labels, object_store_memory=80 * 2**20)
        nodes[made.node_id] = made
        return str(made.node_id)

    def say(**words: Any) -> None:
        print(json.dumps(words), flush=True)

    try:
        for each in cpus[1:]:
            add(each, {})
        say(address=cluster.address, nodes=list(nodes))
        for line in sys.stdin:
            what, *rest = json.loads(line)
            if what == "add":
                say(node=add(*rest))
                continue
            (raylet,) = (each.process.pid for each in nodes.pop(rest[0]).all_processes["raylet"])
            doomed = [psutil.Process(raylet)]
            if what == "kill":
                doomed += doomed[0].children(recursive=True)
            for process in doomed:
                process.kill()
            say(killed=[process.pid for process in doomed])
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main([float(word) for word in sys.argv[1:]])
