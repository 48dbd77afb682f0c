"""The queue of prompts: filled from outside, emptied in order, and a wait with a name where it is empty."""

import pytest

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.inputs import QueuedPrompt

from .bench import Bench, one, only


def prompts(*rows: int) -> tuple[QueuedPrompt, ...]:
    return tuple(QueuedPrompt(epoch=0, row=row, tokens=5) for row in rows)


def hungry(**fields: object) -> Bench:
    """A bench on which nobody offers prompts by itself."""
    bench = Bench(**fields)  # type: ignore[arg-type]
    bench.has_prompts = False
    bench.join(0)
    return bench


def test_prompts_start_in_the_order_they_were_offered() -> None:
    bench = hungry()
    bench.tell(told.PromptsOffered, prompts=prompts(4, 2))
    bench.tell(told.PromptsOffered, prompts=prompts(7))
    queue = bench.plane.prompts
    assert queue.peek() == queue.peek() == prompts(4)[0]
    assert [queue.take().row for _ in range(3)] == [4, 2, 7]
    assert not queue


def test_without_prompts_nothing_starts_and_an_offer_starts_it_at_once() -> None:
    bench = hungry(groups=2)
    assert not only(bench.tick(), do.Admit)
    admits = only(bench.tell(told.PromptsOffered, prompts=prompts(5, 3)), do.Admit)
    assert [admit.row for admit in admits] == [5, 3]


def test_an_offer_behind_a_queue_that_is_not_empty_changes_nothing_now() -> None:
    bench = hungry(groups=1, max_staleness=0)
    bench.tell(told.PromptsOffered, prompts=prompts(1, 2))
    bench.tick()
    assert len(bench.plane.prompts) == 1
    assert bench.tell(told.PromptsOffered, prompts=prompts(3)) == []


def test_waiting_does_not_age_a_prompt() -> None:
    bench = hungry(groups=1, max_staleness=0, steps=3)
    bench.tell(told.PromptsOffered, prompts=prompts(0, 1))
    bench.end(one(bench.tick(), do.Start))
    bench.publish()
    bench.tell(told.Loaded, instance=0, version=1)
    assert [admit.version for admit in bench.made(do.Admit)] == [0, 1]


def test_a_trainer_that_waits_for_prompts_says_so() -> None:
    bench = hungry(groups=2, max_staleness=0)
    bench.tell(told.PromptsOffered, prompts=prompts(0))
    bench.end(one(bench.tick(), do.Start))
    assert bench.made(do.Wait)[-1].reason == "prompts"
    bench.tell(told.PromptsOffered, prompts=prompts(1), after=3.0)
    assert bench.made(do.Wait)[-1].reason == "starved"
    assert bench.plane.meters.prompts_wait_s == pytest.approx(3.0)
    assert not bench.plane.is_stranded


def test_a_run_is_stranded_when_no_more_prompts_come_and_no_batch_can_fill() -> None:
    bench = hungry(groups=2, max_staleness=0, steps=2)
    bench.tell(told.PromptsOffered, prompts=prompts(0, 1, 2))
    bench.tell(told.PromptsOffered, prompts=(), is_last=True)
    first, second = only(bench.tick(), do.Start)
    assert not bench.plane.is_stranded
    bench.end(first)
    bench.end(second)
    assert bench.plane.is_training
    assert not bench.plane.is_stranded, "the step may be lost, and its groups come back"
    bench.publish()
    bench.tell(told.Loaded, instance=0, version=1)
    assert [admit.row for admit in bench.made(do.Admit)] == [0, 1, 2]
    assert bench.plane.is_stranded


def test_a_run_that_is_done_is_not_stranded() -> None:
    bench = hungry(groups=1, max_staleness=0, steps=1)
    bench.tell(told.PromptsOffered, prompts=prompts(0), is_last=True)
    bench.end(one(bench.tick(), do.Start))
    bench.publish()
    assert bench.plane.is_done
    assert not bench.plane.is_stranded
