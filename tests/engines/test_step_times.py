"""The seconds of an engine's steps: what is prompts, what is computed again, what is copied."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.engines.native.scheduling.step_plan import ParkBlocks, Plan, PlannedRow
from dora_rl.engines.native.scheduling.step_times import DecodeTimes, StepTimes
from dora_rl.engines.requests import Request, Sampling, Stopping, StreamKey

from .conftest import MakeEngine


def decoding(number: int) -> tuple[PlannedRow, ...]:
    return tuple(PlannedRow(serial=i, slot=i, start=9, tokens=(), is_sampled=True) for i in range(number))


def prefilling(tokens: int, again: int = 0) -> PlannedRow:
    return PlannedRow(
        serial=99, slot=99, start=0, tokens=(1,) * tokens, is_sampled=True, num_recomputed=again
    )


def test_steps_that_only_decode_count_for_nothing() -> None:
    times = StepTimes(8)
    times.count([Plan(version=0, rows=decoding(4))], 1.0)
    assert set(times.stalls.values()) == {0.0}


def test_a_step_without_decoding_is_prefill_as_a_whole() -> None:
    times = StepTimes(8)
    times.count([Plan(version=0, rows=(prefilling(30, again=10),))], 3.0)
    assert times.stalls == pytest.approx({"prefill_s": 2.0, "recompute_s": 1.0, "kv_moves_s": 0.0})


def test_of_a_mixed_step_what_it_takes_longer_than_decoding_alone_is_prefill() -> None:
    times = StepTimes(8)
    times.count([Plan(version=0, rows=decoding(4))], 1.0)
    times.count([Plan(version=0, rows=(*decoding(4), prefilling(16)))], 1.5)
    times.count([Plan(version=0, rows=(*decoding(4), prefilling(16)))], 0.9)
    assert times.stalls == pytest.approx({"prefill_s": 0.5, "recompute_s": 0.0, "kv_moves_s": 0.0})


def test_before_decoding_alone_was_seen_a_mixed_step_is_shared_by_tokens() -> None:
    times = StepTimes(8)
    times.count([Plan(version=0, rows=(*decoding(4), prefilling(12)))], 1.6)
    assert times.stalls["prefill_s"] == pytest.approx(1.2)


def test_decoding_is_taken_off_for_as_many_rows_as_the_step_has() -> None:
    times = StepTimes(8)
    for rows in (10, 30) * 20:
        times.count([Plan(version=0, rows=decoding(rows))], 0.5 + rows / 20)
    times.count([Plan(version=0, rows=(*decoding(20), prefilling(16)))], 1.75)
    assert times.stalls["prefill_s"] == pytest.approx(0.25)
    times.count([Plan(version=0, rows=(*decoding(2), prefilling(16)))], 0.85)
    assert times.stalls["prefill_s"] == pytest.approx(0.5)


@given(
    steps=st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 1.0)), min_size=1), rows=st.integers(1, 64)
)
def test_whatever_was_seen_decoding_takes_some_time_and_more_rows_no_less(
    steps: list[tuple[int, float]], rows: int
) -> None:
    seen = DecodeTimes()
    for step in steps:
        seen.observe(*step)
    fewer, more = seen.expected_s(rows), seen.expected_s(rows + 1)
    assert fewer is not None
    assert more is not None
    assert -1e-9 <= fewer <= more + 1e-9
    assert fewer <= 64 * max(seconds for _, seconds in steps) + 1e-9


def test_parked_kv_is_a_move_of_its_blocks() -> None:
    times = StepTimes(8)
    times.count([Plan(version=0, rows=decoding(4))], 1.0)
    parked = ParkBlocks(ticket=1, blocks=(1, 2), num_tokens=12)
    times.count([Plan(version=0, rows=(*decoding(4), prefilling(16)), moves=(parked,))], 2.0)
    assert times.stalls == pytest.approx({"prefill_s": 0.5, "recompute_s": 0.0, "kv_moves_s": 0.5})


def test_a_call_that_did_nothing_says_nothing_about_decoding() -> None:
    times = StepTimes(8)
    times.count([Plan(version=0, rows=decoding(4))], 1.0)
    for _ in range(50):
        times.count([], 0.0)
    times.count([Plan(version=0, rows=(*decoding(4), prefilling(16)))], 1.5)
    assert times.stalls["prefill_s"] == pytest.approx(0.5)


def ask(number: int, *, continued: tuple[int, ...] = (), new: int = 40) -> Request:
    return Request(
        id=number,
        version=0,
        key=StreamKey(seed=0, epoch=0, row=number, member=0, attempt=0),
        prompt=tuple(range(3, 43)),
        continued=continued,
        sampling=Sampling(),
        stopping=Stopping(max_new_tokens=new, stop_tokens=()),
    )


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_an_engine_tells_prompts_from_what_it_computes_again(
    make_engine: MakeEngine, steps_ahead: int
) -> None:
    engine = make_engine(steps_ahead=steps_ahead)
    engine.submit(ask(1))
    engine.run()
    first = engine.load()
    assert first.prefill_s > 0
    assert first.recompute_s == first.kv_moves_s == 0
    engine.submit(ask(2, continued=tuple(range(3, 63))))
    engine.run()
    assert engine.load().recompute_s > 0
    assert engine.load().prefill_s == first.prefill_s


@pytest.mark.parametrize(("num_host_blocks", "what"), [(0, "recompute_s"), (64, "kv_moves_s")])
def test_preempted_requests_are_computed_again_or_copied(
    make_engine: MakeEngine, num_host_blocks: int, what: str
) -> None:
    engine = make_engine(num_blocks=24, num_host_blocks=num_host_blocks, max_running=4)
    for number in range(4):
        engine.submit(ask(number, new=60))
    engine.run()
    load = engine.load()
    assert load.num_preempted > 0
    assert getattr(load, what) > 0
