"""Prompts: every row once an epoch, in an order that a seed fixes and a crash does not change."""

from hypothesis import given
from hypothesis import strategies as st

from dora_rl.control.prompts import Prompts


@given(rows=st.integers(1, 40), seed=st.integers(), epochs=st.integers(1, 4))
def test_every_row_comes_once_an_epoch(rows: int, seed: int, epochs: int) -> None:
    prompts = Prompts(tokens=range(1, rows + 1), seed=seed)
    for epoch in range(epochs):
        drawn = [prompts.next() for _ in range(rows)]
        assert {prompt.epoch for prompt in drawn} == {epoch}
        assert sorted(prompt.row for prompt in drawn) == list(range(rows))
        assert all(prompt.tokens == prompt.row + 1 for prompt in drawn)


@given(rows=st.integers(1, 40), seed=st.integers(), taken=st.integers(0, 100))
def test_a_recorded_place_resumes_the_same_stream(rows: int, seed: int, taken: int) -> None:
    first = Prompts(tokens=[1] * rows, seed=seed)
    for _ in range(taken):
        first.next()
    second = Prompts(tokens=[1] * rows, seed=seed)
    second.seek(first.epoch, first.position)
    assert [first.next() for _ in range(2 * rows)] == [second.next() for _ in range(2 * rows)]


def test_looking_does_not_take() -> None:
    prompts = Prompts(tokens=[1, 2, 3], seed=0)
    assert prompts.peek() == prompts.peek() == prompts.next()


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        prompts = Prompts(tokens=[1] * 50, seed=seed)
        prompts.seek(epoch, 0)
        return [prompts.next().row for _ in range(50)]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_a_row_can_be_had_outside_the_stream() -> None:
    prompts = Prompts(tokens=[5, 6, 7], seed=0)
    first = prompts.peek()
    assert (prompts.at(2).row, prompts.at(2).tokens) == (2, 7)
    assert prompts.next() == first
