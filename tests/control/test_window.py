"""The window's two rules against exhaustive search: every small state, every way to fill the batches."""

from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest

from dora_rl.control.window import Verdict, Window

M = 5
"""Batches taken in every state below: more than any S, so that no version is negative."""

SIZES = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (3, 1), (4, 1), (2, 3), (3, 2)]


@cache
def can_be_placed(counts: tuple[int, ...], places: tuple[int, ...]) -> bool:
    """Search: can `counts[i]` groups, each at one of the first `i + 1` batches, all be placed?

    `places[k]` is the room of the k-th batch from now; version `i` has its deadline at batch `i`.
    """
    for i, count in enumerate(counts):
        if count:
            fewer = (*counts[:i], count - 1, *counts[i + 1 :])
            return any(
                places[k] and can_be_placed(fewer, (*places[:k], places[k] - 1, *places[k + 1 :]))
                for k in range(i + 1)
            )
    return True


def feasible(counts: tuple[int, ...], batch: int, *, next_places: int | None = None) -> bool:
    """Can every group be in a batch by its deadline, when the next one has `next_places` left?"""
    first = batch if next_places is None else next_places
    return can_be_placed(counts, (first, *[batch] * (len(counts) - 1)))


def states(batch: int, staleness: int) -> Iterator[tuple[int, ...]]:
    """Active groups of the versions M - S .. M, oldest first: all feasible states."""
    most = [(i + 1) * batch for i in range(staleness + 1)]
    for counts in product(*(range(m + 1) for m in most)):
        if feasible(counts, batch):
            yield counts


def window_in(
    counts: tuple[int, ...], batch: int, staleness: int, finished: tuple[int, ...] | None = None
) -> Window:
    window = Window(batch_groups=batch, max_staleness=staleness)
    window.taken = window.newest = M
    for i, count in enumerate(counts):
        for _ in range(count):
            window.admit(M - staleness + i)
    for i, count in enumerate(finished or ()):
        for _ in range(count):
            window.finish(M - staleness + i)
    return window


def plus(counts: tuple[int, ...], i: int, change: int) -> tuple[int, ...]:
    return (*counts[:i], counts[i] + change, *counts[i + 1 :])


@pytest.mark.parametrize(("batch", "staleness"), SIZES)
def test_a_group_is_admitted_exactly_when_everyone_can_still_make_their_deadline(
    batch: int, staleness: int
) -> None:
    for counts in states(batch, staleness):
        window = window_in(counts, batch, staleness)
        for i in range(staleness + 1):
            room = window.room(M - staleness + i)
            assert room >= 0
            assert feasible(plus(counts, i, room), batch), f"{window} promises {room} of {i}"
            assert not feasible(plus(counts, i, room + 1), batch), f"{window} has more room for {i}"


@pytest.mark.parametrize(("batch", "staleness"), SIZES)
def test_while_a_step_trains_the_batch_it_took_is_no_longer_room(batch: int, staleness: int) -> None:
    """With version M still in training batch M + 1 is next, and version M is the newest there is."""
    for counts in states(batch, staleness):
        if counts[-1]:
            continue
        window = window_in((), batch, staleness)
        window.newest = M - 1
        for i, count in enumerate(counts[:-1]):
            for _ in range(count):
                window.admit(M - staleness + i)
        for i in range(staleness):
            room = window.room(M - staleness + i)
            assert feasible(plus(counts, i, room), batch)
            assert not feasible(plus(counts, i, room + 1), batch)


@pytest.mark.parametrize(("batch", "staleness"), SIZES)
def test_a_batch_is_taken_exactly_when_the_others_can_still_make_theirs(batch: int, staleness: int) -> None:
    seen = set()
    for counts in states(batch, staleness):
        for finished in product(*(range(count + 1) for count in counts)):
            window = window_in(counts, batch, staleness, finished)
            verdict = window.verdict()
            seen.add(verdict)
            if sum(finished) < batch:
                assert verdict is Verdict.STARVED
                continue
            some_choice = any(
                rest_is_feasible(counts, chosen, batch)
                for chosen in product(*(range(count + 1) for count in finished))
                if sum(chosen) == batch
            )
            assert (verdict is Verdict.READY) == some_choice, window
            if verdict is Verdict.READY:
                assert rest_is_feasible(counts, oldest(finished, batch), batch), window
    # Whether there are prompts is not the window's to know.
    known = {Verdict.STARVED, Verdict.READY, Verdict.WINDOW}
    assert seen == known or (staleness == 0 and seen == {Verdict.STARVED, Verdict.READY})


def oldest(finished: tuple[int, ...], batch: int) -> tuple[int, ...]:
    chosen = []
    for count in finished:
        chosen.append(min(count, batch - sum(chosen)))
    return tuple(chosen)


def rest_is_feasible(counts: tuple[int, ...], chosen: tuple[int, ...], batch: int) -> bool:
    """After the batch: the oldest version is out of time, the others have one batch less."""
    left = tuple(count - taken for count, taken in zip(counts, chosen, strict=True))
    return left[0] == 0 and feasible((*left[1:], 0), batch)


@pytest.mark.parametrize(("batch", "staleness"), SIZES)
def test_what_a_batch_is_forced_to_hold_is_the_least_it_can_hold(batch: int, staleness: int) -> None:
    for counts in states(batch, staleness):
        window = window_in(counts, batch, staleness)
        for i in range(staleness + 1):
            least = min(
                sum(chosen[: i + 1])
                for chosen in product(*(range(count + 1) for count in counts))
                if sum(chosen) <= batch and rest_is_feasible(counts, chosen, batch)
            )
            forced = max(window.forced(M - staleness + k) for k in range(i + 1))
            assert forced == least, window


def test_max_staleness_zero_is_on_policy() -> None:
    """S = 0: a batch of the newest version, and nothing starts while it trains."""
    window = Window(batch_groups=2, max_staleness=0)
    assert window.room(0) == 2
    window.admit(0)
    window.admit(0)
    assert window.room(0) == 0
    window.finish(0)
    assert window.verdict() is Verdict.STARVED
    window.finish(0)
    window.take([0, 0])
    assert window.room(0) == 0
    window.publish(1)
    assert (window.room(0), window.room(1)) == (0, 2)


def test_a_batch_given_back_can_be_taken_again() -> None:
    window = window_in((2, 1), 2, 1, finished=(2, 0))
    window.take([M - 1, M - 1])
    assert window.verdict() is Verdict.STARVED
    window.give_back([M - 1, M - 1])
    assert window.verdict() is Verdict.READY
    assert (window.num_active, window.num_finished) == (3, 2)


def test_the_bound_is_lowered_only_if_every_group_can_still_make_it() -> None:
    window = window_in((0, 2, 1), 2, 2)
    assert window.tighten(1)
    assert not window.tighten(0)
    assert window.max_staleness == 1
    window.check()


def test_a_group_too_old_for_the_batch_is_an_error() -> None:
    window = window_in((1, 0), 1, 1, finished=(1, 0))
    with pytest.raises(AssertionError, match="too old"):
        window.take([M - 2])


@pytest.mark.parametrize(("batch", "staleness"), SIZES)
def test_what_is_not_overfull_can_be_taken_and_leaves_everyone_in_time(batch: int, staleness: int) -> None:
    """Redundant groups end until nothing is overfull; then the plain rule holds."""
    for counts in states(batch, staleness):
        for finished in product(*(range(count + 1) for count in counts)):
            window = window_in(counts, batch, staleness, finished)
            is_ready = sum(finished) >= batch and window.overfull() is None
            assert is_ready == (window.verdict() is Verdict.READY)


def test_spare_groups_are_room_only_where_a_batch_is_left() -> None:
    window = Window(batch_groups=2, max_staleness=0, spare=3)
    assert window.room(0) == 5
    for _ in range(5):
        window.admit(0)
    for _ in range(2):
        window.finish(0)
    assert window.verdict() is Verdict.READY
    assert window.overfull() == 0
    for _ in range(3):
        window.close(0, finished=False)
    assert window.overfull() is None
    window.take([0, 0])
    assert window.room(0) == 0
