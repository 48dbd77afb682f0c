"""An engine that adopts through a store serves what an engine with the full weights serves."""

from pathlib import Path

import pytest
import torch

from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.engine_memory import serving_dtype
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey
from dora_rl.model.config import ModelConfig
from dora_rl.model.tiny import seeded_decoder, tiny_config
from dora_rl.weights.protocol import VersionStore
from dora_rl.weights.store import Store
from dora_rl.weights.strips import Tensors

from .versions import same_bits

CONFIG: ModelConfig = tiny_config(90)
LAST = 3


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    return Store(tmp_path)


@pytest.fixture(params=["float32", "bfloat16"])
def engine_config(request: pytest.FixtureRequest) -> EngineConfig:
    limits = Limits(num_blocks=64, block_size=8, max_positions=256)
    return EngineConfig(limits=limits, dtype=request.param)


def versions(dtype: torch.dtype) -> list[Tensors]:
    """Steps large enough to change what is drawn."""
    decoder = seeded_decoder(CONFIG, 0)
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(LAST + 1):
        made.append(
            {name: parameter.detach().to(dtype, copy=True) for name, parameter in decoder.named_parameters()}
        )
        for parameter in decoder.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            chosen = torch.rand(parameter.shape, generator=generator) < 0.2
            parameter.data += 0.1 * noise * chosen
    return made


def engine_with(config: EngineConfig, version: int, tensors: Tensors) -> NativeEngine:
    engine = NativeEngine(CONFIG, config, Stops([2]))
    engine.load_version(version, tensors)
    return engine


def drawn(engine: NativeEngine, version: int) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    for number in range(4):
        engine.submit(
            Request(
                id=number,
                version=version,
                prompt=(5, 6, 7 + number),
                key=StreamKey(seed=number),
                sampling=Sampling(temperature=1.0),
                stopping=Stopping(max_new_tokens=12, is_length_prescribed=True),
            )
        )
    ended = sorted((event for event in engine.run() if isinstance(event, Finished)), key=lambda each: each.id)
    return [(event.tokens, event.logprobs) for event in ended]


def adopt(engine: NativeEngine, store: VersionStore, version: int, base: int) -> None:
    tensors = dict(engine.decoder(base).named_parameters())
    engine.adopt_version(version, base, store.fetch_delta(version, base, tensors))


@pytest.mark.parametrize("is_step_by_step", [True, False])
def test_an_adopting_engine_serves_the_same_tokens(
    store: VersionStore, engine_config: EngineConfig, is_step_by_step: bool
) -> None:
    made = versions(serving_dtype(engine_config))
    for number, tensors in enumerate(made):
        store.publish(number, tensors)
    expected = drawn(engine_with(engine_config, LAST, made[LAST]), LAST)
    engine = engine_with(engine_config, 0, store.fetch(0))
    assert len(expected) == 4
    assert [tokens for tokens, _ in drawn(engine, 0)] != [tokens for tokens, _ in expected]
    if is_step_by_step:
        for version in range(1, LAST + 1):
            adopt(engine, store, version, version - 1)
    else:
        adopt(engine, store, LAST, 0)
    assert same_bits(dict(engine.decoder(LAST).named_parameters()), made[LAST])
    assert drawn(engine, LAST) == expected


def test_the_base_of_running_requests_stays_as_it_was(
    store: VersionStore, engine_config: EngineConfig
) -> None:
    made = versions(serving_dtype(engine_config))
    for number, tensors in enumerate(made):
        store.publish(number, tensors)
    engine = engine_with(engine_config, 0, made[0])
    engine.submit(
        Request(
            id=99,
            version=0,
            prompt=(5, 6, 7),
            key=StreamKey(seed=0),
            stopping=Stopping(max_new_tokens=12, is_length_prescribed=True),
        )
    )
    engine.step()
    adopt(engine, store, 1, 0)
    assert same_bits(dict(engine.decoder(0).named_parameters()), made[0])
    assert same_bits(dict(engine.decoder(1).named_parameters()), made[1])
