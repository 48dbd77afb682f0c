"""The engine over Triton kernels says what the engine on the CPU says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.cpu_executor import CPU
from dora_rl.engines.native.cuda.cuda_backend import backend_on
from dora_rl.engines.native.cuda.cuda_executor import CudaExecutor
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey
from dora_rl.model.hub_config import read_config

NUM_VERSIONS = 2
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeOn = Callable[..., NativeEngine]


@pytest.fixture(scope="session")
def make_on(directories: list[Path]) -> MakeOn:
    """An engine on a backend."""

    def make(backend: Backend, *, is_batch_invariant: bool = False, **limits: int) -> NativeEngine:
        sizes = {
            "num_blocks": 60,
            "block_size": 8,
            "max_running": 6,
            "step_tokens": 24,
            "max_positions": 128,
            "num_host_blocks": 60,
        }
        config = EngineConfig(
            limits=Limits(**sizes | limits), steps_ahead=1, is_batch_invariant=is_batch_invariant
        )
        engine = NativeEngine(read_config(directories[0] / "config.json"), config, Stops([]), backend=backend)
        for version in range(NUM_VERSIONS):
            engine.load_version(version, directories[version])
        return engine

    return make


def requests(sampling: Sampling, num_new: int = 5) -> list[Request]:
    """Different prompts, two of them a group's, two versions, one long context."""
    lengths = [3, 40, 9, 9, 17, 1]
    return [
        Request(
            id=index,
            version=index % NUM_VERSIONS if index not in (2, 3) else 0,
            prompt=tuple((7 * place + 5) % 101 for place in range(length))
            if index in (2, 3)
            else tuple((place * place + index) % 103 for place in range(length)),
            key=StreamKey(seed=5, row=index),
            sampling=sampling,
            stopping=Stopping(max_new_tokens=num_new + index % 3),
            group=1 if index in (2, 3) else None,
        )
        for index, length in enumerate(lengths)
    ]


def ended(engine: NativeEngine) -> dict[int, Finished]:
    events = engine.run()
    assert all(isinstance(event, Finished) for event in events), events
    return {event.id: event for event in events if isinstance(event, Finished)}


def answers(engine: NativeEngine, wanted: list[Request]) -> dict[int, Finished]:
    for request in wanted:
        engine.submit(request)
    return ended(engine)


def assert_same(ours: dict[int, Finished], theirs: dict[int, Finished]) -> None:
    assert ours.keys() == theirs.keys()
    for number, one in ours.items():
        other = theirs[number]
        assert one.tokens == other.tokens, number
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.cut_logprobs == pytest.approx(other.cut_logprobs, abs=1e-4)


SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "warm": Sampling(temperature=0.8),
    "cut": Sampling(top_k=20, top_p=0.9, min_p=0.02),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("num_blocks", [60, 12])
def test_tokens_are_those_of_the_cpu(
    device: str, make_on: MakeOn, sampling: Sampling, num_blocks: int
) -> None:
    wanted = requests(sampling)
    limits = {"num_blocks": num_blocks}
    assert_same(
        answers(make_on(backend_on(device), **limits), wanted), answers(make_on(CPU, **limits), wanted)
    )


def test_passes_that_are_rehearsed_between_steps_change_no_token(device: str, make_on: MakeOn) -> None:
    wanted = requests(SAMPLINGS["warm"])
    engine = make_on(backend_on(device))
    for request in wanted:
        engine.submit(request)
    executor = engine._device
    assert isinstance(executor, CudaExecutor)
    num_left = [len(executor._unrehearsed)]
    while engine.step():
        engine.rest()
        num_left.append(len(executor._unrehearsed))
    assert num_left[0] > 0
    assert num_left[-1] == 0
    assert_same(ended(engine), answers(make_on(CPU), wanted))


def test_a_move_between_devices_changes_no_token(device: str, make_on: MakeOn) -> None:
    wanted = requests(SAMPLINGS["warm"], num_new=8)
    there, here = make_on(backend_on(device)), make_on(CPU)
    for request in wanted:
        there.submit(request)
    for _ in range(5):
        there.step()
    for request in wanted[1:4]:
        here.import_request(there.export_request(request.id))
    for request in wanted[1:3]:
        there.import_request(here.export_request(request.id))
    assert_same(ended(there) | ended(here), answers(make_on(CPU), wanted))


def test_invariant_bits_do_not_depend_on_the_batch(device: str, make_on: MakeOn) -> None:
    wanted = requests(SAMPLINGS["warm"])
    together = answers(make_on(backend_on(device), is_batch_invariant=True), wanted)
    alone = {}
    engine = make_on(backend_on(device), is_batch_invariant=True, step_tokens=7)
    for request in wanted:
        alone |= answers(engine, [request])
    assert together == alone
    assert_same(together, answers(make_on(CPU), wanted))


def test_a_version_moves_into_the_place_of_another(
    device: str, make_on: MakeOn, directories: list[Path]
) -> None:
    wanted = [request for request in requests(SAMPLINGS["greedy"]) if request.version == 0]
    engine = make_on(backend_on(device))
    expected = answers(engine, wanted)
    for version in (0, 1):
        engine.drop_version(version)
    engine.load_version(1, directories[1])
    engine.load_version(0, directories[0])
    assert_same(answers(engine, wanted), expected)
