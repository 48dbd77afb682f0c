"""Laws of a warm pool: made ahead, checked, one taker at a time, closed at the end."""

import itertools
import threading
import time
from collections.abc import Callable

import pytest

from dora_rl.envs.warm_pool import WarmPool


class Made:
    """An object that is expensive to make, if `delay_s` says so."""

    def __init__(self, delay_s: float = 0.0) -> None:
        time.sleep(delay_s)
        self.is_good = True
        self.times_closed = 0

    def close(self) -> None:
        self.times_closed += 1


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.005)


def test_what_is_ready_costs_a_taker_nothing() -> None:
    pool = WarmPool(lambda: Made(0.2), size=2)
    first = pool.take()  # Nothing is made before somebody wants one.
    _until(lambda: len(pool._ready) == 2)
    begun = time.monotonic()
    taken = {id(pool.take()), id(pool.take())}
    assert time.monotonic() - begun < 0.1
    assert len(taken | {id(first)}) == 3
    pool.close()


def test_no_two_takers_have_one_object() -> None:
    pool = WarmPool(Made, size=3, is_reused=True)
    held: set[int] = set()
    wrong: list[int] = []

    def take_often() -> None:
        for _ in range(60):
            with pool.lent() as item:
                if id(item) in held:
                    wrong.append(id(item))
                held.add(id(item))
                time.sleep(0)
                held.discard(id(item))

    threads = [threading.Thread(target=take_often) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert not wrong
    pool.close()


def test_what_broke_while_it_waited_is_closed_and_not_handed_out() -> None:
    pool = WarmPool(Made, size=2, check=lambda item: item.is_good)
    pool.give_back(pool.take())
    _until(lambda: len(pool._ready) == 2)
    broken = list(pool._ready)
    for each in broken:
        each.is_good = False
    assert pool.take().is_good
    assert pool.num_broken >= 1
    assert broken[0].times_closed == 1
    pool.close()


def test_a_check_that_raises_is_one_not_passed() -> None:
    pool = WarmPool(Made, size=1, check=lambda item: 1 / 0 > 0)
    pool.take()  # One that was just made is not checked.
    _until(lambda: len(pool._ready) == 1)
    pool.take()
    assert pool.num_broken == 1
    pool.close()


def test_reused_objects_come_back_unless_something_was_raised() -> None:
    pool = WarmPool(Made, size=1, is_reused=True)
    pool._filler = threading.current_thread()  # Nothing is made beside.
    with pool.lent() as first:
        pass
    with pytest.raises(ValueError, match="mine"), pool.lent() as again:
        raise ValueError("mine")
    assert again is first
    assert first.times_closed == 1
    with pool.lent() as third:
        assert third is not first
    pool.close()
    assert third.times_closed == 1


def test_a_failing_start_is_the_takers_error_and_the_thread_backs_off() -> None:
    tries: list[float] = []

    def fail() -> Made:
        tries.append(time.monotonic())
        raise OSError("no such place")

    pool = WarmPool(fail, size=1, pause_s=0.05)
    with pytest.raises(OSError, match="no such place"):
        pool.take()
    _until(lambda: len(tries) >= 5)  # One of the taker's, four of the thread's.
    pool.close()
    # The first two, the taker's and the thread's, come in any order.
    pauses = [after - before for before, after in itertools.pairwise(tries[1:5])]
    assert all(pause > 0.04 * 2**number for number, pause in enumerate(pauses)), pauses


def test_closing_closes_what_is_ready_now_and_what_is_lent_later() -> None:
    pool = WarmPool(Made, size=2)
    lent = pool.take()
    _until(lambda: len(pool._ready) == 2)
    ready = list(pool._ready)
    pool.close()
    assert [each.times_closed for each in ready] == [1, 1]
    assert lent.times_closed == 0
    pool.give_back(lent)
    assert lent.times_closed == 1
    with pytest.raises(RuntimeError, match="closed"):
        pool.take()
    assert pool._filler is not None
    pool._filler.join(5)
    assert not pool._filler.is_alive()
