"""The engine's closed forms against a loop that decodes token by token."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Costs
from dora_rl.costs.hardware import find_gpu
from dora_rl.costs.model_shapes import find_shape
from dora_rl.costs.rollout import RolloutCost
from dora_rl.sim.simulated_engine import SimulatedEngine, SimulatedRequest


def make_cost(*, floor_s: float = 0.0, model: str = "Qwen2.5-7B") -> RolloutCost:
    return RolloutCost(
        gpu=find_gpu("H800"),
        shape=find_shape(model),
        costs=Costs(decode_floor_s=floor_s),
        gpus=1,
        memory_share=0.9,
    )


def make_engine(*, slots: int = 64, kv_tokens: int = 10**7, floor_s: float = 0.0) -> SimulatedEngine:
    spec = InstanceSpec(slots=slots, kv_tokens=kv_tokens, max_versions=4)
    return SimulatedEngine(0, spec, make_cost(floor_s=floor_s), 0, 0.0)


def request(
    key: int, until: int, *, group: int | None = None, prompt: int = 10, tokens: int = 0, version: int = 0
) -> SimulatedRequest:
    return SimulatedRequest(
        trajectory=key,
        group=key if group is None else group,
        version=version,
        prompt_tokens=prompt,
        tokens=float(tokens),
        until=float(until),
    )


def run(engine: SimulatedEngine) -> dict[int, float]:
    """Let the engine run dry; when each request ended."""
    ends: dict[int, float] = {}
    while (time := engine.next_event()) is not None:
        engine.advance(time)
        for done in engine.ended():
            engine.release(done.trajectory)
            ends[done.trajectory] = time
        if engine.is_pressed:
            engine.park_youngest()
        engine.refill_batch()
    return ends


def decode_token_by_token(engine: SimulatedEngine, requests: list[SimulatedRequest]) -> dict[int, float]:
    """The reference: one decode step at a time, each as long as the cost model says."""
    left = {r.trajectory: int(r.until - r.tokens) for r in requests}
    prompts = {r.group: r.prompt_tokens for r in requests}
    kv = sum(prompts.values()) + sum(r.tokens for r in requests)
    now, ends = 0.0, {}
    while left:
        cohorts = len({r.version for r in requests if r.trajectory in left})
        now += engine.cost.step_s(len(left), kv, cohorts)
        kv += len(left)
        for r in requests:
            if r.trajectory in left:
                left[r.trajectory] -= 1
                if not left[r.trajectory]:
                    del left[r.trajectory]
                    ends[r.trajectory] = now
                    kv -= r.until
                    if not any(q.group == r.group and q.trajectory in left for q in requests):
                        kv -= r.prompt_tokens
    return ends


@pytest.mark.parametrize("floor_s", [0.0, 0.006, 0.05])
@pytest.mark.parametrize("seed", range(8))
def test_a_batch_ends_when_it_would_token_by_token(seed: int, floor_s: float) -> None:
    rng = Random(seed)
    requests = [
        request(
            key,
            rng.randint(20, 800),
            group=key // 2,
            prompt=50 * (1 + key // 2),
            tokens=rng.choice((0, 15)),
            version=rng.randint(0, 2) if seed % 2 else 0,
        )
        for key in range(rng.randint(1, 24))
    ]
    engine = make_engine(floor_s=floor_s)
    expected = decode_token_by_token(engine, requests)
    for r in requests:
        engine.submit(r, prefill=False)
    ends = run(engine)
    assert ends.keys() == expected.keys()
    for key, end in ends.items():
        assert end == pytest.approx(expected[key], rel=1e-3), f"request {key} of seed {seed}"


@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=20),
    cuts=st.lists(st.floats(0.0, 1.0), max_size=5),
    floor_s=st.sampled_from((0.0, 0.01)),
)
def test_it_does_not_matter_how_often_one_looks(
    lengths: list[int], cuts: list[float], floor_s: float
) -> None:
    watched, alone = make_engine(floor_s=floor_s), make_engine(floor_s=floor_s)
    for engine in (watched, alone):
        for key, length in enumerate(lengths):
            engine.submit(request(key, length), prefill=False)
    end = alone.next_event()
    assert end is not None
    for cut in sorted(cuts):
        watched.advance(cut * end)
        assert watched.next_event() == pytest.approx(end, rel=1e-9, abs=1e-9)
    watched.advance(end)
    alone.advance(end)
    assert watched.clock == pytest.approx(alone.clock, rel=1e-9)
    assert alone.clock == pytest.approx(min(lengths), abs=1e-6), "the steps in the time for k steps are k"
    assert watched.kv == pytest.approx(alone.kv, rel=1e-9)


def test_a_slow_instance_takes_its_factor_longer() -> None:
    fast, slow = make_engine(), make_engine()
    slow.slow_down(2.0)
    for engine in (fast, slow):
        for key in range(3):
            engine.submit(request(key, 100 * (key + 1)), prefill=False)
    fast_ends, slow_ends = run(fast), run(slow)
    for key, end in fast_ends.items():
        assert slow_ends[key] == pytest.approx(2.0 * end, rel=1e-6)


def test_a_group_keeps_its_prompt_once() -> None:
    engine = make_engine()
    for key in range(4):
        engine.submit(request(key, 50, group=7, prompt=100), prefill=False)
    assert engine.kv == 100
    for key in range(3):
        engine.release(key)
    assert engine.kv == 100
    engine.release(3)
    assert engine.kv == 0


def test_the_first_member_prefills_the_prompt_for_its_siblings() -> None:
    alone, group = make_engine(), make_engine()
    alone.submit(request(0, 100, prompt=5000), prefill=True)
    for key in range(4):
        group.submit(request(key, 100, group=0, prompt=5000), prefill=True)
    assert alone.next_event() == pytest.approx(group.next_event(), rel=0.05)


def test_a_parked_request_frees_its_kv_and_comes_back() -> None:
    engine = make_engine()
    for key in range(2):
        engine.submit(request(key, 100), prefill=False)
    first = engine.next_event()
    assert first is not None
    engine.advance(first / 2)
    kv = engine.kv
    engine.park(0)
    assert engine.kv == pytest.approx(kv / 2)
    assert engine.claimed_kv == int(kv)
    engine.refill_batch()
    assert engine.kv == pytest.approx(kv)
    assert run(engine).keys() == {0, 1}
    assert engine.kv == pytest.approx(0.0, abs=1e-6)


def test_a_request_that_is_moved_here_and_finds_no_kv_waits_in_host_memory() -> None:
    engine = make_engine(kv_tokens=1000)
    engine.submit(request(0, 900, tokens=700), prefill=False)
    engine.submit(request(1, 900, tokens=600), prefill=False)
    assert (engine.num_running, engine.kv, engine.claimed_kv) == (1, 710, 1320)
    ends = run(engine)
    assert list(ends) == [0, 1]
    assert engine.kv == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_the_kv_never_overflows_by_more_than_a_step(seed: int) -> None:
    """Nobody helps: the engine parks the youngest by itself, and everything ends nevertheless."""
    rng = Random(seed)
    capacity = rng.choice((1500, 4000))
    engine = make_engine(slots=rng.choice((4, 32)), kv_tokens=capacity)
    waiting = [request(key, rng.randint(10, 1000)) for key in range(60)]
    ended = set()
    while (time := engine.next_event()) is not None or waiting:
        if time is not None:
            engine.advance(time)
        for done in engine.ended():
            engine.release(done.trajectory)
            ended.add(done.trajectory)
        if engine.is_pressed:
            engine.park_youngest()
        engine.refill_batch()
        assert engine.kv <= capacity + engine.num_running + 1e-6
        while waiting and engine.claimed_kv + 100 * len(engine.requests) < 0.9 * capacity:
            engine.submit(waiting.pop(), prefill=True)
    assert ended == set(range(60))
    assert engine.kv == pytest.approx(0.0, abs=1e-6)


def test_no_more_decode_than_there_are_slots() -> None:
    engine = make_engine(slots=3)
    for key in range(8):
        engine.submit(request(key, 50 + key), prefill=False)
    assert engine.num_running == 3
    assert run(engine).keys() == set(range(8))


def test_a_request_that_left_its_queue_and_came_back_runs_once() -> None:
    """Moved away before it had a slot, and back again: its old place in the queue is gone."""
    engine = make_engine(slots=1)
    engine.submit(request(0, 30), prefill=False)
    engine.submit(request(1, 20), prefill=False)
    back = engine.release(1)
    engine.submit(back, prefill=False)
    turns = []
    while (time := engine.next_event()) is not None:
        engine.advance(time)
        turns += [done.trajectory for done in engine.ended()]
        engine.refill_batch()
        assert len(turns) <= 2, "its environment was asked twice"
    assert turns == [0, 1]


def test_a_paused_instance_stands_still() -> None:
    engine = make_engine()
    engine.submit(request(0, 100), prefill=False)
    engine.advance(0.1)
    clock = engine.clock
    engine.is_paused = True
    assert engine.next_event() is None
    engine.advance(50.0)
    assert engine.clock == clock
    engine.is_paused = False
    engine.advance(50.1)
    assert engine.clock > clock
    assert engine.busy_s == pytest.approx(0.2)


def test_weights_that_load_beside_the_others_cost_kv() -> None:
    spec = InstanceSpec(slots=4, kv_tokens=1000, version_kv_tokens=300, max_versions=3)
    engine = SimulatedEngine(0, spec, make_cost(), 0, 0.0)
    assert engine.kv_capacity == 1000
    engine.hold((0, 1))
    assert engine.kv_capacity == 700
