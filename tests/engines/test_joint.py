"""Rows of several versions in one pass draw what they would have drawn in passes of their own."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.cpu_executor import CpuExecutor, Done
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.step_plan import Plan
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey

MakeEngine = Callable[..., NativeEngine]


@pytest.fixture(autouse=True)
def _on_a_cpu(backend: Backend) -> None:
    if backend.torch_device != "cpu":
        pytest.skip("versions are joined on the CPU only")


def asked(count: int) -> list[Request]:
    """Groups of three, of three versions, prompts that fill blocks in part and in whole."""
    return [
        Request(
            id=number,
            version=number // 3 % 3,
            prompt=tuple(3 + (number // 3 * 7 + i) % 90 for i in range(2 + number // 3 % 17)),
            key=StreamKey(seed=4, row=number // 3, member=number % 3),
            sampling=Sampling(temperature=0.8),
            stopping=Stopping(max_new_tokens=3 + number * 5 % 30, is_length_prescribed=True),
            group=number // 3,
        )
        for number in range(count)
    ]


def outcomes(engine: NativeEngine, requests: Sequence[Request]) -> dict[int, Finished]:
    for request in requests:
        engine.submit(request)
    ended = {}
    while engine.step():
        engine.check_integrity()
        ended |= {each.id: each for each in engine.finished() if isinstance(each, Finished)}
    return ended


@pytest.mark.parametrize("limits", [{}, {"num_blocks": 14}, {"num_blocks": 14, "num_host_blocks": 20}])
def test_joined_passes_draw_the_same(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    """Also where requests lose their blocks to others of another version in the middle of a round."""
    requests, sizes = asked(45), []
    launch = CpuExecutor.launch_together

    def noted(executor: CpuExecutor, plans: Sequence[Plan]) -> list[Done]:
        sizes.append(len(plans))
        return launch(executor, plans)

    monkeypatch.setattr(CpuExecutor, "launch_together", noted)
    together = outcomes(make_engine(**limits), requests)
    assert max(sizes) == 3
    monkeypatch.setattr(CpuExecutor, "joins_versions", False)
    apart = outcomes(make_engine(**limits), requests)
    assert together.keys() == apart.keys() == {each.id for each in requests}
    for number, mine in together.items():
        assert mine.tokens == apart[number].tokens
        assert mine.logprobs == pytest.approx(apart[number].logprobs, abs=1e-4)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_the_sizes_a_round_loses_nothing(make_engine: MakeEngine, data: st.DataObject) -> None:
    limits = {
        "num_blocks": data.draw(st.integers(8, 30)),
        "num_host_blocks": data.draw(st.sampled_from([0, 3, 40])),
        "max_running": data.draw(st.integers(1, 8)),
        "step_tokens": data.draw(st.integers(8, 40)),
    }
    requests = asked(24)
    expected = outcomes(make_engine(), requests)
    found = outcomes(make_engine(**limits), requests)
    assert {number: each.tokens for number, each in found.items()} == {
        number: each.tokens for number, each in expected.items()
    }


@pytest.mark.parametrize("limits", [{}, {"num_blocks": 14}, {"num_blocks": 14, "num_host_blocks": 20}])
def test_guesses_change_no_token(make_engine: MakeEngine, limits: dict[str, int]) -> None:
    requests = asked(12)
    plain, engine = outcomes(make_engine(), requests), make_engine(guessed_tokens=6, **limits)
    for _ in range(2):
        guessed = outcomes(engine, requests)
        assert guessed.keys() == plain.keys()
        for number, mine in guessed.items():
            assert mine.tokens == plain[number].tokens
            assert mine.logprobs == pytest.approx(plain[number].logprobs, abs=1e-4)
    assert engine.guesses[1] > 20
