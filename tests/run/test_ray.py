"""Whole runs on a cluster of several nodes: nodes die, and nothing is lost, done twice or left behind."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dora_rl
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input, InstanceJoined, Published
from dora_rl.core.recipe import Patience
from dora_rl.launch.cluster import RayLaunch
from dora_rl.launch.dialled import DialledHandle
from dora_rl.launch.protocol import WorkerSpec
from dora_rl.run.live_run import run_live
from dora_rl.run.open_run import replay_live
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout
from dora_rl.store.journal import Journal

from ..raylets import Raylets
from .campaign import MINUTES, SEED
from .cluster_campaign import LEFT_S, ClusterCampaign, left_over
from .conftest import MakeSetup, staged
from .sql_verdict import violations
from .verdict import check_journal

NUM_DEATHS = int(os.environ.get("FAULT_NODES", "50"))
"""Nodes that die in a campaign, if `FAULT_MINUTES` are enough."""

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


class WatchedLaunch:
    """Notes what is started on a cluster. Implements Launch."""

    def __init__(self, launch: RayLaunch) -> None:
        self._launch = launch
        self.started: list[tuple[str, DialledHandle]] = []

    def start(self, worker: WorkerSpec, replies: Any) -> DialledHandle:
        self.started.append((worker.name, self._launch.start(worker, replies)))
        return self.started[-1][1]

    def node_of(self, name: str) -> str | None:
        """The node of the newest worker of a name; None while it is on its way."""
        return next(handle.node for each, handle in reversed(self.started) if each == name)


class NodeKiller:
    """Kills nodes after so many published versions, each as soon as its workers are there. Is a watcher."""

    def __init__(self, plan: dict[int, Callable[[], bool]]) -> None:
        """`plan` has what is done after a version; it says whether it could be done."""
        self.left = dict(plan)
        self._newest = 0

    def __call__(self, told: Input, decisions: list[Decision]) -> None:
        if isinstance(told, Published):
            self._newest = told.version
        for after, kill in list(self.left.items()):
            if self._newest >= after and kill():
                del self.left[after]


@pytest.fixture
def nodes() -> Iterator[Raylets]:
    """A head that only orchestrates, and three nodes that work."""
    pytest.importorskip("ray")
    with Raylets(0, 2, 2, 2) as cluster:
        yield cluster
    assert not left_over(LEFT_S)


def check(root: Path) -> None:
    """Nothing lost, nothing twice; the log replays."""
    check_journal(root)
    assert replay_live(root).difference is None
    with Journal.open(LiveLayout(root=root).journal) as journal:
        times = Counter(told.version for told, _ in journal.events() if isinstance(told, Published))
    assert set(times.values()) == {1}
    assert sorted(times) == list(range(1, len(times) + 1))


def test_the_node_of_each_role_dies_and_the_run_comes_to_its_end(
    make_setup: MakeSetup, nodes: Raylets
) -> None:
    setup = make_setup(steps=12, layout=DeviceLayout(instances=2))
    root = Path(setup.run_directory)
    with closing(RayLaunch(nodes.address)) as ray:
        launch = WatchedLaunch(ray)

        def kills(*names: str, only_raylet: bool = False) -> Callable[[], bool]:
            def kill() -> bool:
                doomed = {launch.node_of(name) for name in names}
                if None in doomed:
                    return False
                for node in filter(None, doomed):
                    (nodes.kill_raylet if only_raylet else nodes.kill)(node)
                    nodes.add(2)
                return True

            return kill

        plan = {
            1: kills("instance 0"),
            3: kills("the trainer"),
            5: kills("a reward worker"),
            7: kills("instance 1", only_raylet=True),
            9: kills("instance 0", "the trainer"),
        }
        killer = NodeKiller(plan)
        summary = run_live(setup, staged(setup), [killer], launch=launch)
        assert not killer.left
    assert summary.is_complete
    assert sum(summary.worker_deaths.values()) >= 5
    assert not left_over(LEFT_S)
    check(root)
    with Journal.open(LiveLayout(root=root).journal) as journal:
        joined = [told.spec for told, _ in journal.events() if isinstance(told, InstanceJoined)]
    assert len(joined) >= 4
    assert not any(spec.moves_kv for spec in joined), "KV does not move between machines"
    assert len({spec.node for spec in joined}) > 1
    log = LiveLayout(root=root).orchestrator_log.read_text()
    assert "was lost with node" in log
    assert os.listdir(LiveLayout(root=root).logs)


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * MINUTES)
def test_a_run_whose_nodes_die_again_and_again_keeps_the_laws(make_setup: MakeSetup) -> None:
    pytest.importorskip("ray")
    patience = Patience(max_deaths=50)
    setup = make_setup(steps=25, layout=DeviceLayout(instances=2), patience=patience)
    until = time.monotonic() + 60 * MINUTES
    campaign = ClusterCampaign(setup, seed=SEED, num_deaths=NUM_DEATHS, until=until)
    campaign.run()
    root = Path(setup.run_directory)
    found = [*campaign.wrong, *violations(LiveLayout(root=root).journal)]
    print(f"{campaign.num_deaths} nodes died, {campaign.num_resumes} resumes: {dict(campaign.strikes)}")
    assert not found, "\n".join(found)
    check(root)


def test_a_recipe_that_names_a_cluster_trains_there_and_an_instance_joins_with_its_node(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ray")
    layout = LiveLayout(root=tmp_path / "run")

    def joined() -> list[int]:
        with Journal.open(layout.journal) as journal:
            return [told.instance for told, _ in journal.events() if isinstance(told, InstanceJoined)]

    with Raylets(0, 2) as cluster:
        run = dora_rl.start(
            model="tiny",
            steps=2000,
            batch={"groups": 2, "group_size": 2},
            data={"train": {"name": "letters"}},
            response={"max_new_tokens": 6},
            devices={"kind": "cpu", "instances": 2},
            control={"silence_s": 10.0},
            cluster={"ray": cluster.address},
            run={"directory": str(layout.root), "trackers": []},
        )
        began = time.monotonic()
        for step in run:
            has_waited = time.monotonic() - began > 15.0
            if has_waited and len(cluster.nodes) == 2:
                assert len(joined()) == 1, "there is no room for the other, and it is no death to wait"
                assert "waits for a node with 1 CPU free" in layout.instance_log(1).read_text()
                cluster.add(2)
            if step["step"] % 20 == 0 and len(joined()) == 2:
                run.stop()
        assert run.state == "interrupted"
        assert sorted(joined()) == [0, 1]
        deaths = layout.orchestrator_log.read_text() if layout.orchestrator_log.exists() else ""
        assert "instance 1" not in deaths
    assert not left_over(LEFT_S)
    check_journal(layout.root, is_complete=False)
    assert replay_live(layout.root).difference is None
