"""What is said of the nodes of a cluster is what a worker on each of them saw."""

import fcntl
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dora_rl.core.errors import UserError
from dora_rl.launch.cluster_check import check_nodes, check_shared
from dora_rl.launch.dialled import DialledHandle
from dora_rl.launch.probe import looked
from dora_rl.launch.protocol import WorkerSpec
from dora_rl.launch.ray_words import Node

from .dialled import DialledLaunch

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="agents need Linux")


def node(name: str, cpus: float = 2.0) -> Node:
    return Node(id=name, host=name, cpus=cpus, gpus=0.0, gpu_kind=None, memory_bytes=2.0**30, labels={})


class Cluster(DialledLaunch):
    """Nodes that are all this machine, but `broken`, where nothing starts, and `head`, which has no core."""

    def nodes(self) -> tuple[Node, ...]:
        return node("head", 0.0), node("whole"), node("broken")

    def start(self, worker: WorkerSpec, replies: Any) -> DialledHandle:
        assert worker.place.cpus is None, "a probe takes nobody's core"
        if worker.place.node == "broken":
            worker = msgspec.structs.replace(worker, module="nowhere")
        return super().start(worker, replies)


def test_a_probe_says_what_its_node_sees_and_how_far_it_is(tmp_path: Path) -> None:
    launch: Any = Cluster()
    whole, broken = check_nodes(launch, tmp_path / "not" / "made")
    assert (whole.node.id, broken.node.id) == ("whole", "broken")
    assert whole.problem is None
    assert whole.sees_directory
    assert whole.keeps_locks
    assert abs(whole.clock_skew_s) < 1.0
    assert 0.0 < whole.round_trip_s < 1.0
    assert whole.bytes_per_s > 1e6
    assert broken.problem == "exited with 1"
    assert not list(tmp_path.iterdir()), "nothing is left"
    assert all(not handle.is_alive for _, handle in launch.started)


def test_a_run_names_the_nodes_that_do_not_see_its_directory(tmp_path: Path) -> None:
    launch: Any = Cluster()
    with pytest.raises(UserError, match=rf"do not see {tmp_path} as this machine does: broken \(exited"):
        check_shared(launch, tmp_path)


def test_a_file_that_is_not_there_or_that_anybody_may_lock_is_told_as_such(tmp_path: Path) -> None:
    assert looked(tmp_path / "none").content is None
    (tmp_path / "there").write_bytes(b"x")
    seen = looked(tmp_path / "there")
    assert (seen.content, seen.is_locked) == (b"x", False)
    with (tmp_path / "there").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert not looked(tmp_path / "there").is_locked, "a lock of its own is none"
