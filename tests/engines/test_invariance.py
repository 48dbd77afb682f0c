"""In batch-invariant mode tokens and logprobs are the same bits, whatever happens around a request."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.engine_memory import serving_dtype
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.native.tiled_experts import TiledExperts
from dora_rl.engines.requests import Event, Finished, Request, Sampling, Stopping, StreamKey
from dora_rl.model.config import Experts
from dora_rl.model.experts import ExpertMlp
from dora_rl.model.tiny import seeded_decoder, tiny_config

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


def drawn_tokens(event: Event) -> tuple[int, ...]:
    assert isinstance(event, Finished), event
    return event.tokens


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


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_bits_do_not_depend_on_guesses(
    steps_ahead: int, make_engine: MakeEngine, alone: dict[int, Event], dtype: str
) -> None:
    engine = make_engine(is_batch_invariant=True, dtype=dtype, steps_ahead=steps_ahead, guessed_tokens=5)
    numbers = [0, 1, 4, 7]  # With and without a cut, of two versions.
    expected = {number: alone[number] for number in numbers}
    assert outcomes(engine, numbers) == expected
    for number in numbers:
        # Texts that begin alike and go on otherwise: wrong guesses.
        begun, key = drawn_tokens(alone[number])[:6], StreamKey(seed=9, row=number)
        engine.submit(replace(request(number), id=100 + number, continued=begun, key=key))
    engine.run()
    assert outcomes(engine, numbers) == expected
    num_guessed, num_right = engine.guesses
    assert num_right > 10
    assert num_guessed > num_right, "wrong guesses are among them"


def test_bits_do_not_depend_on_a_move(make_engine: MakeEngine, alone: dict[int, Event], dtype: str) -> None:
    here = make_engine(is_batch_invariant=True, dtype=dtype)
    there = make_engine(is_batch_invariant=True, dtype=dtype, num_host_blocks=100, block_size=5)
    for number in alone:
        here.submit(request(number))
    for number in (5, 2, 7):
        here.step()
        there.import_request(here.export_request(number))
    assert {each.id: each for each in (*here.run(), *there.run())} == alone


def turns(engine: NativeEngine, lineage: int | None) -> list[Event]:
    """A turn of an episode, one of its fork, and one more of the first branch: each gives way to the next."""
    ended, stopping = list[Event](), Stopping(max_new_tokens=9, is_length_prescribed=True)
    prompt = tuple(3 + i * 11 % 90 for i in range(37))

    def turn(id: int, branch: int, context: tuple[int, ...]) -> tuple[int, ...]:
        key = StreamKey(seed=8, row=1, branch=branch)
        engine.submit(
            Request(
                id=id,
                version=1,
                prompt=context,
                key=key,
                stopping=stopping,
                lineage=lineage,
                holds_turn=True,
            )
        )
        (event,) = engine.run()
        ended.append(event)
        engine.abort(id)
        engine.finished()
        return (*context, *drawn_tokens(event))

    root = turn(0, 0, prompt)
    turn(1, 77, (*root, 5, 6, 7))
    turn(2, 0, (*root, 8, 9))
    return ended


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_bits_do_not_depend_on_what_branches_share(
    steps_ahead: int, make_engine: MakeEngine, dtype: str
) -> None:
    shared, apart = (
        make_engine(is_batch_invariant=True, dtype=dtype, steps_ahead=steps_ahead, block_size=5)
        for _ in range(2)
    )
    assert turns(shared, lineage=4) == turns(apart, lineage=None)
    assert shared.load().num_reused == (37 + 8) + (37 + 9), "all of the first turn that is computed by then"
    assert apart.load().num_reused == 0


def sparse_engine(dtype: str, **limits: int) -> NativeEngine:
    experts = Experts(num_experts=6, num_active=2, intermediate_size=24, is_normalised=True)
    model = replace(tiny_config(103), family="qwen3_moe", experts=experts)
    sizes = {"num_blocks": 100, "block_size": 8, "max_running": 8, "max_positions": 256} | limits
    config = EngineConfig(limits=Limits(**sizes), is_batch_invariant=True, dtype=dtype)  # type: ignore[arg-type]
    engine = NativeEngine(model, config, Stops([2]))
    for version in range(3):
        decoder = seeded_decoder(model, version)
        for parameter in decoder.parameters():
            parameter.data *= 4
        engine.load_version(version, decoder.to(serving_dtype(config)).state_dict())
    return engine


@pytest.fixture(scope="module")
def sparse_alone(dtype: str) -> dict[int, Event]:
    engine = sparse_engine(dtype, max_running=1)
    return {number: outcomes(engine, [number])[number] for number in range(8)}


@given(
    numbers=st.lists(st.integers(0, 7), min_size=1, unique=True),
    block_size=st.integers(3, 9),
    num_host_blocks=st.sampled_from([0, 30]),
    step_tokens=st.integers(8, 50),
)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bits_do_not_depend_on_who_shares_an_expert(
    numbers: list[int],
    block_size: int,
    num_host_blocks: int,
    step_tokens: int,
    sparse_alone: dict[int, Event],
    dtype: str,
) -> None:
    engine = sparse_engine(
        dtype,
        num_blocks=-(-75 // block_size),
        block_size=block_size,
        num_host_blocks=num_host_blocks,
        step_tokens=step_tokens,
    )
    assert outcomes(engine, numbers) == {number: sparse_alone[number] for number in numbers}


def test_tiled_experts_are_the_experts() -> None:
    experts = ExpertMlp(16, Experts(num_experts=5, num_active=3, intermediate_size=8, is_normalised=True), 0)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.numel()))
    rows = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(TiledExperts(experts)(rows), experts(rows), rtol=1e-4, atol=1e-4)
