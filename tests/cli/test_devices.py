"""Who runs where, on machines that are not this one."""

import pytest
from msgspec.structs import replace

from dora_rl.cli.machine import Gpu
from dora_rl.cli.training.devices import place
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.live import Devices as Asked
from dora_rl.runtime.setup import Devices

GPU = Gpu(name="some", memory_bytes=80 * 2**30)


def placed(num_gpus: int, num_cores: int = 8, **asked: object) -> Devices:
    return place(replace(Recipe(), devices=Asked(**asked)), [GPU] * num_gpus, num_cores)


@pytest.mark.parametrize(
    ("num_gpus", "ranks", "instances", "homes", "is_elastic"),
    [
        (1, 1, 1, ["cuda:0"], True),
        (4, 1, 3, ["cuda:3"], False),
        (4, 2, 2, ["cuda:2", "cuda:3"], False),
        # The trainer has them all: every GPU generates and trains in turn.
        (2, 2, 2, ["cuda:0", "cuda:1"], True),
    ],
)
def test_the_last_gpus_train(
    num_gpus: int, ranks: int, instances: int, homes: list[str], is_elastic: bool
) -> None:
    devices = placed(num_gpus, trainer_ranks=ranks)
    assert [devices.rank_device(rank) for rank in range(devices.trainer_ranks)] == homes
    assert (devices.instances, devices.is_elastic) == (instances, is_elastic)


def test_every_rank_needs_a_gpu_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"trainer_ranks = 3, but torch sees 2 GPUs"):
        placed(2, trainer_ranks=3)


def test_ranks_share_the_cores_that_instances_leave() -> None:
    assert placed(0, num_cores=8).trainer_threads == 4
    devices = placed(0, num_cores=8, trainer_ranks=2)
    assert (devices.trainer_ranks, devices.trainer_threads, devices.instance_threads) == (2, 2, 4)
    assert placed(0, num_cores=1, trainer_ranks=4).trainer_threads == 1
