"""A cluster is planned as one machine that has it all, as far as no worker needs more than a node has."""

from collections.abc import Sequence

import pytest

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.launch.ray_words import Node
from dora_rl.prepare.cluster_devices import ClusterDevices
from dora_rl.prepare.cluster_placement import cluster_placements, found_gpus, on_nodes
from dora_rl.prepare.planner import memory_limits
from dora_rl.run.run_setup import DeviceLayout

from .test_placement import QWEN


def node(cpus: float, gpus: float = 0.0, kind: str | None = None) -> Node:
    return Node(
        id=f"{cpus}", host="10.0.0.1", cpus=cpus, gpus=gpus, gpu_kind=kind, memory_bytes=2.0**36, labels={}
    )


def layouts(nodes: Sequence[Node], **devices: object) -> list[DeviceLayout]:
    return list(cluster_placements(asking(**devices), QWEN, ClusterDevices.of(nodes)))


def asking(**devices: object) -> Recipe:
    return resolve_recipe({"devices": devices})


def test_on_cpus_no_worker_has_more_threads_than_a_node_has_cores_and_the_head_may_have_none() -> None:
    (layout,) = layouts([node(0), node(4), node(4), node(2)])
    assert layout.instances == 2, "a node each, and one for the trainer"
    assert layout.instance_threads <= 4
    assert layout.trainer_threads == 4
    (many,) = layouts([node(4)] * 3, instances=9)
    assert (many.instances, many.instance_threads) == (9, 1)
    with pytest.raises(ConfigError, match="no node of the Ray cluster has a core"):
        ClusterDevices.of([node(0)])


def test_every_instance_and_rank_has_a_gpu_of_its_own_and_sees_no_other() -> None:
    nodes = [node(16, 4, "H100")] * 2
    for planned in layouts(nodes):
        homes = [planned.instance_home(i) for i in range(planned.instances)]
        ranks = [planned.rank_device(i) for i in range(planned.trainer_ranks)]
        assert len({*homes, *ranks}) == len(homes) + len(ranks) <= 8
        assert planned.trainer_ranks <= 4, "one node's"
        assert not planned.is_elastic
        spread = on_nodes(planned)
        assert {spread.instance_home(i) for i in range(spread.instances)} == {"cuda:0"}
        assert [spread.rank_device(i) for i in range(spread.trainer_ranks)] == [
            f"cuda:{i}" for i in range(spread.trainer_ranks)
        ]
        names = [limit.name for limit in memory_limits(asking(), planned, ClusterDevices.of(nodes))]
        assert names == [*(f"cuda:{i}" for i in range(8)), "host"]
    assert layouts(nodes, trainer_ranks=2, instances=5)[0].instances == 5


def test_what_a_cluster_of_gpus_cannot_do_is_refused_by_name() -> None:
    nodes = [node(16, 2, "H100")] * 2
    with pytest.raises(
        ConfigError, match=r"at most 2 on a node, have no room for 1 instances and .* 3 ranks"
    ):
        layouts(nodes, trainer_ranks=3)
    with pytest.raises(ConfigError, match="GPUs of their own"):
        layouts(nodes, elastic=True)
    with pytest.raises(ConfigError, match="have no room"):
        layouts([node(16, 1, "H100")])
    unknown = ClusterDevices.of([node(16, 2, None)])
    with pytest.raises(ConfigError, match="Ray does not say its kind"):
        found_gpus(unknown, None)
    assert found_gpus(unknown, 80)[1].memory_bytes == 80 * 2**30
