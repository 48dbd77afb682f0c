"""Who runs where, on machines that are not this one."""

import pytest
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Batch, ImaginedTask, Lognormal, Recipe
from dora_rl.core.recipe.live import Devices
from dora_rl.costs.hardware import gpu_like
from dora_rl.model.random_models import SHAPES
from dora_rl.prepare.device_placement import placements
from dora_rl.prepare.machine import Gpu
from dora_rl.run.run_setup import DeviceLayout

QWEN = SHAPES["qwen3-0.6b"]
SHORT = Lognormal(median_tokens=100, sigma=0.5, max_tokens=512)
LONG = Lognormal(median_tokens=4000, max_tokens=32_768)


def placed(
    num_gpus: int,
    num_cores: int = 8,
    *,
    gpu: str = "some",
    lengths: Lognormal = SHORT,
    groups: int = 64,
    prompt_tokens: int = 512,
    **asked: object,
) -> DeviceLayout:
    recipe = replace(
        Recipe(),
        devices=Devices(**asked),
        batch=Batch(groups=groups, group_size=8),
        task=ImaginedTask(lengths=lengths, prompt_tokens=prompt_tokens),
    )
    return next(placements(recipe, QWEN, [Gpu(name=gpu, memory_bytes=80 * 2**30)] * num_gpus, num_cores))


def ranks_of(devices: DeviceLayout) -> list[str]:
    return [devices.rank_device(rank) for rank in range(devices.trainer_ranks)]


def pausing(devices: DeviceLayout) -> list[int]:
    return [number for number in range(devices.instances) if devices.pauses(number)]


@pytest.mark.parametrize(
    ("num_gpus", "ranks", "instances", "homes", "is_elastic"),
    [
        (1, None, 1, ["cuda:0"], True),
        (4, None, 3, ["cuda:3"], False),
        (4, 2, 2, ["cuda:2", "cuda:3"], False),
        # The trainer has them all: every GPU generates and trains in turn.
        (2, 2, 2, ["cuda:0", "cuda:1"], True),
    ],
)
def test_the_last_of_gpus_that_nothing_is_known_of_train(
    num_gpus: int, ranks: int | None, instances: int, homes: list[str], is_elastic: bool
) -> None:
    devices = placed(num_gpus, trainer_ranks=ranks)
    assert ranks_of(devices) == homes
    assert (devices.instances, devices.is_elastic) == (instances, is_elastic)


def test_more_gpus_train_where_prompts_are_most_of_the_work() -> None:
    generating = placed(8, gpu="NVIDIA H100 80GB HBM3", lengths=LONG, prompt_tokens=64)
    training = placed(8, gpu="NVIDIA H100 80GB HBM3", lengths=SHORT, prompt_tokens=8192)
    assert generating.trainer_ranks < training.trainer_ranks


def test_gpus_that_would_wait_half_of_the_time_do_both() -> None:
    """Of two GPUs one trains in a moment: it generates too, and only its instance pauses."""
    devices = placed(2, gpu="NVIDIA H200", lengths=LONG, prompt_tokens=64, groups=512)
    assert (devices.trainer_ranks, devices.instances, pausing(devices)) == (1, 2, [1])
    apart = placed(2, gpu="NVIDIA H200", lengths=LONG, prompt_tokens=64, groups=512, elastic=False)
    assert (apart.trainer_ranks, apart.instances, pausing(apart)) == (1, 1, [])


def test_what_was_asked_for_is_kept() -> None:
    devices = placed(8, gpu="NVIDIA H200", trainer_ranks=3, elastic=True)
    assert (ranks_of(devices), devices.instances) == (["cuda:5", "cuda:6", "cuda:7"], 8)
    assert pausing(devices) == [5, 6, 7]
    more = placed(4, gpu="NVIDIA H200", trainer_ranks=2, instances=3)
    assert (more.instances, pausing(more)) == (3, [2])


def test_in_a_sync_run_every_gpu_generates() -> None:
    recipe = replace(Recipe(), batch=Batch(groups=64, group_size=8), task=ImaginedTask(lengths=LONG))
    recipe = replace(recipe, control=replace(recipe.control, schedule="sync"))
    gpus = [Gpu(name="NVIDIA H200", memory_bytes=140 * 2**30)] * 4
    devices = next(placements(recipe, QWEN, gpus, 8))
    assert devices.instances == 4
    assert [devices.instance_home(number) for number in pausing(devices)] == ranks_of(devices)


@pytest.mark.parametrize(
    ("name", "known"),
    [("NVIDIA H200 NVL", "H200"), ("NVIDIA H20", "H20"), ("NVIDIA GeForce RTX 4090", "RTX4090")],
)
def test_gpus_are_known_by_what_a_driver_calls_them(name: str, known: str) -> None:
    found = gpu_like(name)
    assert found is not None
    assert found.name == known
    assert gpu_like("Voodoo 2") is None


def test_every_rank_needs_a_gpu_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"trainer_ranks = 3, but torch sees 2 GPUs"):
        placed(2, trainer_ranks=3)


def test_ranks_share_the_cores_that_instances_leave() -> None:
    assert placed(0, num_cores=8).trainer_threads == 4
    devices = placed(0, num_cores=8, trainer_ranks=2)
    assert (devices.trainer_ranks, devices.trainer_threads, devices.instance_threads) == (2, 2, 4)
    assert placed(0, num_cores=1, trainer_ranks=4).trainer_threads == 1
