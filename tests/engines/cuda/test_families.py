"""Every kind of layer over Triton kernels: biases, heads without norms, experts, and layers without them."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.cpu_executor import CPU
from dora_rl.engines.native.cuda.cuda_backend import backend_on
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey
from dora_rl.model.config import Experts, ModelConfig
from dora_rl.model.tiny import seeded_decoder, tiny_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TINY = tiny_config(61)
EXPERTS = Experts(num_experts=5, num_active=2, intermediate_size=24, is_normalised=True, dense_layers=(1,))
MODELS = {
    "llama": replace(TINY, family="llama", num_heads=3, num_kv_heads=3, head_dim=20),
    "qwen2": replace(TINY, family="qwen2", has_qkv_bias=True, is_tied=False),
    "smollm3": replace(TINY, family="smollm3", num_layers=3, unrotated_layers=(1,)),
    "mistral": replace(TINY, family="mistral", window=64, sliding_layers=(0, 1)),
    "qwen3_moe": replace(TINY, family="qwen3_moe", num_layers=3, experts=EXPERTS),
}


def make_engine(model: ModelConfig, backend: Backend, **settings: bool) -> NativeEngine:
    limits = Limits(num_blocks=40, block_size=8, max_running=3, step_tokens=16, max_positions=64)
    config = EngineConfig(limits=limits, max_versions=1, **settings)
    engine = NativeEngine(model, config, Stops([]), backend=backend)
    weights = seeded_decoder(model, seed=1).state_dict()
    engine.load_version(0, {name: 4 * value for name, value in weights.items()})
    return engine


def ended(engine: NativeEngine, numbers: Sequence[int]) -> dict[int, Finished]:
    for number in numbers:
        prompt = tuple((7 * place + number) % 61 for place in range(3 + 6 * number))
        key = StreamKey(seed=1, row=number)
        stopping = Stopping(max_new_tokens=4)
        engine.submit(
            Request(
                id=number,
                version=0,
                prompt=prompt,
                key=key,
                stopping=stopping,
                sampling=Sampling(temperature=0.9),
            )
        )
    return {event.id: event for event in engine.run() if isinstance(event, Finished)}


def tokens(model: ModelConfig, backend: Backend) -> dict[int, tuple[int, ...]]:
    return {id: each.tokens for id, each in ended(make_engine(model, backend), range(3)).items()}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_tokens_are_those_of_the_cpu(device: str, model: ModelConfig) -> None:
    assert tokens(model, backend_on(device)) == tokens(model, CPU)


def test_bits_of_experts_do_not_depend_on_the_batch(device: str) -> None:
    engine = make_engine(MODELS["qwen3_moe"], backend_on(device), is_batch_invariant=True)
    together = ended(engine, range(3))
    alone = {number: ended(engine, [number])[number] for number in range(3)}
    assert together == alone
    assert {number: each.tokens for number, each in alone.items()} == tokens(MODELS["qwen3_moe"], CPU)
