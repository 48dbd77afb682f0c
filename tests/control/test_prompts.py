"""The queue of prompts: filled from outside, emptied in order, and a wait with a name where it is empty."""

from math import log

import pytest

from dora_rl.control.prompt_queue import PromptQueue
from dora_rl.control.row_lengths import RowLengths
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


def queue_of(*rows: int) -> PromptQueue:
    queue = PromptQueue(most_at_once=4)
    queue.waiting.extend(prompts(*rows))
    return queue


def seen(**tokens: int) -> RowLengths:
    """Rows r1, r2, ... whose responses had so many tokens."""
    lengths = RowLengths()
    for row, length in tokens.items():
        lengths.observe(int(row[1:]), length)
    return lengths


def test_rows_whose_responses_were_long_start_first_within_their_block() -> None:
    queue = queue_of(1, 2, 3, 4, 5)
    queue.put_long_first(4, seen(r1=100, r2=900, r4=500, r5=5000))
    rows = [prompt.row for prompt in queue.waiting]
    assert rows[0] == 2
    assert rows.index(4) < rows.index(1)
    assert rows[1:4].count(3) == 1, "a row that was never answered is taken for one of mean length"
    assert rows[4] == 5, "it is of the next block"


def test_no_prompt_is_passed_over_twice() -> None:
    queue, lengths = queue_of(1, 2, 3, 4, 5), seen(r1=1, r2=900, r3=800, r4=700, r5=5000)
    queue.put_long_first(3, lengths)
    assert [queue.take().row for _ in range(2)] == [2, 3]
    queue.put_long_first(3, lengths)
    assert [prompt.row for prompt in queue.waiting] == [1, 5, 4]


def test_rows_that_were_never_answered_keep_their_order() -> None:
    queue = queue_of(3, 1, 2)
    queue.put_long_first(3, seen(r9=5))
    assert [prompt.row for prompt in queue.waiting] == [3, 1, 2]


def test_lengths_of_rows_fade_and_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = seen(r1=10)
    for _ in range(400):
        lengths.observe(1, 1000)
    assert lengths.expected(1) == pytest.approx(log(1000), abs=0.05)
    monkeypatch.setattr("dora_rl.control.row_lengths._REMEMBERED", 3)
    for row in (2, 3, 4):
        lengths.observe(row, 50)
    assert not lengths.knows_any_of([1])
    assert lengths.knows_any_of([2, 3, 4])


@pytest.mark.parametrize("is_on", [True, False])
def test_after_a_publish_control_starts_long_rows_first_where_it_is_asked_to(is_on: bool) -> None:
    bench = hungry(groups=2, max_staleness=0, steps=9, long_first=is_on)
    bench.tell(told.PromptsOffered, prompts=prompts(1, 2))
    for start, tokens in zip(only(bench.tick(), do.Start), (10, 90), strict=True):
        bench.end(start, tokens=tokens)
    bench.tell(told.PromptsOffered, prompts=prompts(1, 2, 3))
    bench.publish()
    bench.tell(told.Loaded, instance=0, version=1)
    assert [admit.row for admit in bench.made(do.Admit)][2:] == ([2, 1] if is_on else [1, 2])
