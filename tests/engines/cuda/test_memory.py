"""What the executor holds is what the ledger was told."""

import gc

import pytest
import torch
from msgspec.structs import replace

from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.cuda.cache import BlockCache
from dora_rl.engines.native.cuda.cuda_executor import CudaExecutor, buffer_bytes, moving_bytes
from dora_rl.engines.native.cuda.lane import lane_bytes
from dora_rl.engines.native.cuda.plan_buffers import Room
from dora_rl.engines.native.cuda.slots import cut_bytes
from dora_rl.model.config import Experts, ModelConfig
from dora_rl.model.tiny import tiny_config

TINY = tiny_config(5000)
EXPERTS = Experts(num_experts=5, num_active=2, intermediate_size=24, is_normalised=True)
MIXED: ModelConfig = replace(TINY, family="qwen3_moe", experts=EXPERTS)


def held_bytes(executor: CudaExecutor) -> int:
    """Of every tensor that can be reached from the executor, each piece of memory once."""
    seen, waiting, sizes = set(), [executor], {}
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type) or callable(thing):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            sizes[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif type(thing).__module__.startswith(("dora_rl", "builtins")):
            waiting += gc.get_referents(thing)
    return sum(sizes.values())


@pytest.mark.parametrize("is_batch_invariant", [False, True])
@pytest.mark.parametrize("num_versions", [1, 3])
@pytest.mark.parametrize("model", [TINY, MIXED], ids=["dense", "moe"])
def test_buffers_are_as_large_as_the_ledger_was_told(
    model: ModelConfig, is_batch_invariant: bool, num_versions: int
) -> None:
    limits = Limits(num_blocks=20, block_size=8, max_running=40, step_tokens=300, max_positions=600)
    config = EngineConfig(limits=limits, max_versions=num_versions, is_batch_invariant=is_batch_invariant)
    executor = CudaExecutor(model, config, torch.device("cpu"))
    cache = BlockCache(model, limits, torch.float32, torch.device("cpu")).blocks.nbytes
    told = buffer_bytes(model, config)
    passing = moving_bytes(model, config) + cut_bytes(model, config)
    held = held_bytes(executor) - cache
    assert held <= told - passing
    assert held >= 0.8 * (told - passing), "the ledger counts what is not there"


def test_experts_are_counted() -> None:
    config = EngineConfig(limits=Limits(num_blocks=20, max_positions=64))
    room = Room(num_rows=8, num_prefilled=64)
    products = 64 * EXPERTS.num_active * (EXPERTS.intermediate_size + MIXED.hidden_size) * 4
    assert lane_bytes(MIXED, config, room) >= lane_bytes(TINY, config, room) + products
