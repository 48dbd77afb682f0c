"""Rows dealt to several workers, and products of packed matrices, come out as they would plainly."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.passes import SPLIT_TOKENS, split_rows
from dora_rl.engines.native.scheduling.step_plan import PlannedRow
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey

MakeEngine = Callable[..., NativeEngine]


@pytest.fixture
def _three_threads() -> Iterator[None]:
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


def ended(engine: NativeEngine) -> dict[int, Finished]:
    for number in range(16):
        engine.submit(
            Request(
                id=number,
                version=number % 3,
                prompt=tuple(3 + (number * 7 + i) % 90 for i in range(1 + number * 11 % 50)),
                key=StreamKey(seed=4, row=number),
                sampling=Sampling(temperature=0.8, top_p=0.95 if number % 2 else 1.0),
                stopping=Stopping(max_new_tokens=12),
            )
        )
    return {each.id: each for each in engine.run() if isinstance(each, Finished)}


@pytest.mark.usefixtures("_three_threads")
def test_workers_change_no_bit_in_batch_invariant_mode(make_engine: MakeEngine) -> None:
    several = make_engine(is_batch_invariant=True, step_tokens=100)
    torch.set_num_threads(1)
    one = make_engine(is_batch_invariant=True)
    assert ended(several) == ended(one)


@pytest.mark.usefixtures("_three_threads")
def test_workers_draw_the_same_tokens_in_fast_mode(make_engine: MakeEngine) -> None:
    several = ended(make_engine(step_tokens=100))
    torch.set_num_threads(1)
    one = ended(make_engine())
    assert several.keys() == one.keys()
    for number, alone in one.items():
        assert several[number].tokens == alone.tokens
        assert several[number].logprobs == pytest.approx(alone.logprobs, abs=1e-4)


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=40), num_parts=st.integers(1, 5))
def test_parts_are_all_rows_in_order_and_about_as_large(lengths: list[int], num_parts: int) -> None:
    rows = tuple(
        PlannedRow(serial=slot, slot=slot, start=0, tokens=(1,) * length, is_sampled=True)
        for slot, length in enumerate(lengths)
    )
    parts = split_rows(rows, num_parts)
    assert [row for part in parts for row in part] == list(rows)
    assert 1 <= len(parts) <= num_parts
    assert all(parts)
    sizes = [sum(row.num_tokens for row in part) for part in parts]
    if len(parts) > 1:
        assert sum(sizes) >= len(parts) * SPLIT_TOKENS
        assert max(sizes[:-1]) <= max(max(lengths), -(-sum(sizes) // len(parts)) + max(lengths))


def test_an_engine_does_without_packed_products(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = ended(make_engine())
    monkeypatch.setattr("dora_rl.engines.native.packed_linear._packs_well", lambda: False)
    plain = ended(make_engine())
    assert {number: each.tokens for number, each in plain.items()} == {
        number: each.tokens for number, each in packed.items()
    }
