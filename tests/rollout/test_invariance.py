"""In batch-invariant mode tokens and logprobs are the same bits, whatever happens around a request."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dora_rl.core.errors import ConfigError
from dora_rl.model.config import Experts, ModelConfig
from dora_rl.model.tiny import tiny_config
from dora_rl.rollout.native.engine import NativeEngine
from dora_rl.rollout.native.setup import EngineConfig
from dora_rl.rollout.requests import Event, Request, Sampling, Stopping, StreamKey
from dora_rl.rollout.scheduling.limits import Limits
from dora_rl.rollout.scheduling.stops import Stops

MakeEngine = Callable[..., NativeEngine]


def request(number: int) -> Request:
    return Request(
        id=number,
        version=number % 3,
        prompt=tuple(3 + (number * 7 + i) % 90 for i in range(1 + number * 13 % 40)),
        key=StreamKey(seed=8, row=number),
        sampling=Sampling(temperature=0.9, top_k=40) if number % 2 else Sampling(),
        stopping=Stopping(max_new_tokens=12),
    )


def outcomes(engine: NativeEngine, numbers: list[int]) -> dict[int, Event]:
    for number in numbers:
        engine.submit(request(number))
    return {each.id: each for each in engine.run()}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def alone(make_engine: MakeEngine, dtype: str) -> dict[int, Event]:
    engine = make_engine(is_batch_invariant=True, dtype=dtype, max_running=1)
    return {number: outcomes(engine, [number])[number] for number in range(8)}


@given(
    numbers=st.lists(st.integers(0, 7), min_size=1, unique=True),
    block_size=st.integers(3, 9),
    num_host_blocks=st.sampled_from([0, 30]),
    step_tokens=st.integers(8, 50),
    steps_ahead=st.integers(0, 1),
)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bits_do_not_depend_on_batch_chunks_or_preemption(
    numbers: list[int],
    block_size: int,
    num_host_blocks: int,
    step_tokens: int,
    steps_ahead: int,
    make_engine: MakeEngine,
    alone: dict[int, Event],
    dtype: str,
) -> None:
    engine = make_engine(
        is_batch_invariant=True,
        dtype=dtype,
        steps_ahead=steps_ahead,
        num_blocks=-(-75 // block_size),
        block_size=block_size,
        num_host_blocks=num_host_blocks,
        max_running=8,
        step_tokens=step_tokens,
    )
    assert outcomes(engine, numbers) == {number: alone[number] for number in numbers}


def test_bits_do_not_depend_on_a_move(make_engine: MakeEngine, alone: dict[int, Event], dtype: str) -> None:
    here = make_engine(is_batch_invariant=True, dtype=dtype)
    there = make_engine(is_batch_invariant=True, dtype=dtype, num_host_blocks=100, block_size=5)
    for number in alone:
        here.submit(request(number))
    for number in (5, 2, 7):
        here.step()
        there.import_request(here.export_request(number))
    assert {each.id: each for each in (*here.run(), *there.run())} == alone


def test_experts_are_refused() -> None:
    dense = tiny_config(50)
    experts = Experts(num_experts=4, num_active=2, intermediate_size=8, is_normalised=True)
    sparse = ModelConfig(
        **{name: getattr(dense, name) for name in dense.__struct_fields__} | {"experts": experts}
    )
    config = EngineConfig(limits=Limits(num_blocks=4, max_positions=64), is_batch_invariant=True)
    with pytest.raises(ConfigError, match="not possible with experts"):
        NativeEngine(sparse, config, Stops([2]))
