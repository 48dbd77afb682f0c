"""Episodes under control: environments are reset ahead, versions pinned after it, and every wait ends."""

from typing import Any

import pytest

from dora_rl.control.estimates import EnvironmentWaits
from dora_rl.control.ledger import Phase
from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.errors import ConfigError
from dora_rl.core.inputs import QueuedPrompt
from dora_rl.core.instance_seconds import InstanceSeconds
from dora_rl.core.recipe.episodes import EpisodeSettings

from .bench import Bench, one, only


def make_bench(*, max_open: int | None = None, ahead: int | None = None, **options: Any) -> Bench:
    return Bench(episode=EpisodeSettings(function="guess", max_open=max_open, ahead=ahead), **options)


def opened(bench: Bench, asked: do.Open, *, tokens: int = 5) -> list[do.Decision]:
    return bench.tell(
        told.Opened, epoch=asked.epoch, row=asked.row, tokens=tokens, is_evaluation=asked.is_evaluation
    )


def started(bench: Bench) -> list[do.Start]:
    """What starts on one instance while all that is asked for is opened at once."""
    bench.join(0)
    bench.tick()
    num_opened = 0
    while only(opened(bench, bench.made(do.Open)[num_opened]), do.Start):
        num_opened += 1
        if num_opened == len(bench.made(do.Open)):
            break
    return bench.made(do.Start)


def ends(
    bench: Bench, trajectory: int, *, reward: float | None = 0.0, truncated: bool = False
) -> list[do.Decision]:
    first = bench.tell(told.EpisodeEnded, trajectory=trajectory, tokens=9, truncated=truncated)
    return first + bench.tell(told.Scored, trajectory=trajectory, reward=reward)


# --- opening ---


def test_nothing_starts_before_its_environments_are_reset() -> None:
    bench = make_bench(groups=2, group_size=2)
    bench.join(0)
    assert not only(bench.tick(), do.Start)
    first, second = bench.made(do.Open)
    admit = one(opened(bench, second), do.Admit)
    assert (admit.epoch, admit.row) == (second.epoch, second.row), "a slow reset holds up nobody else"
    assert len(bench.made(do.Start)) == 2
    assert one(opened(bench, first), do.Admit).row == first.row


def test_a_slow_reset_ages_nobody() -> None:
    bench = make_bench(groups=1, max_staleness=3, active_groups=3, ahead=2)
    bench.join(0)
    bench.tick()
    slow, quick = bench.made(do.Open)
    opened(bench, quick)
    bench.turn_ends(bench.made(do.Start)[0])
    ends(bench, bench.made(do.Start)[0].trajectory)
    bench.publish()
    bench.tell(told.Loaded, instance=0, version=1)
    assert one(opened(bench, slow), do.Admit).version == 1


def test_environments_are_reset_as_far_ahead_as_the_recipe_says() -> None:
    bench = make_bench(groups=2, ahead=3)
    bench.tick()
    assert len(bench.made(do.Open)) == 3
    bench.join(0)
    opened(bench, bench.made(do.Open)[0])
    assert len(bench.made(do.Open)) == 4, "what started is ahead no longer"


def test_left_out_a_batch_is_reset_ahead() -> None:
    bench = make_bench(groups=4)
    bench.tick()
    assert len(bench.made(do.Open)) == 4


def test_no_more_environments_are_open_than_may_be() -> None:
    bench = make_bench(groups=2, group_size=2, max_open=4)
    starts = started(bench)
    assert len(bench.made(do.Open)) == 2, "a third group would make six"
    for start in starts[:2]:
        bench.turn_ends(start)
        assert len(bench.made(do.Open)) == 2
        bench.tell(told.EpisodeEnded, trajectory=start.trajectory, tokens=9)
    assert len(bench.made(do.Open)) == 3


def test_room_for_less_than_a_group_is_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than one group"):
        make_bench(group_size=4, max_open=3)


def test_no_environment_is_reset_that_the_run_will_not_need() -> None:
    bench = make_bench(groups=2, steps=1, ahead=9)
    assert len(started(bench)) == 2
    assert len(bench.made(do.Open)) == 2


def test_a_prompt_whose_environments_cannot_be_reset_is_dropped_counted_and_replaced() -> None:
    bench = make_bench(groups=1, steps=1)
    bench.join(0)
    bench.tick()
    asked = one(bench.all, do.Open)
    again = one(bench.tell(told.OpenFailed, epoch=asked.epoch, row=asked.row, reason="no port"), do.Open)
    assert (again.epoch, again.row) != (asked.epoch, asked.row)
    assert bench.plane.meters.failed_openings == 1
    assert not opened(bench, asked), "it was given up"
    ends(bench, one(opened(bench, again), do.Start).trajectory)
    bench.publish()
    assert bench.plane.is_done


def test_the_tokens_of_a_group_are_those_that_its_environments_begin_with() -> None:
    bench = make_bench()
    bench.join(0)
    bench.tick()
    assert one(opened(bench, one(bench.all, do.Open), tokens=70), do.Start).prompt_tokens == 70


# --- turns and branches ---


def test_a_waiting_episode_takes_no_slot() -> None:
    bench = make_bench(groups=2, active_groups=2, max_staleness=0)
    bench.join(0, slots=1)
    bench.tick()
    for asked in bench.made(do.Open):
        opened(bench, asked)
    first = one(bench.all, do.Start)
    assert one(bench.turn_ends(first), do.Start).trajectory != first.trajectory


def test_another_branch_is_started_behind_its_own_context_under_the_same_version() -> None:
    bench = make_bench(max_staleness=0)
    (start,) = started(bench)
    bench.turn_ends(start, tokens=30)
    decisions = bench.tell(told.EnvironmentReplied, trajectory=start.trajectory, tokens=0, context=12)
    assert [type(d) for d in decisions[:2]] == [do.Evict, do.Start]
    again = one(decisions, do.Start)
    assert (again.version, again.attempt) == (start.version, start.attempt)
    assert again.prompt_tokens + again.generated_tokens == 12


@pytest.mark.parametrize("is_full", [False, True])
def test_another_branch_starts_where_the_first_was_if_there_is_room(is_full: bool) -> None:
    bench = make_bench(group_size=4, max_staleness=0)
    bench.join(0, slots=2)
    bench.join(1, slots=2)
    bench.tick()
    opened(bench, one(bench.all, do.Open))
    starts = bench.made(do.Start)
    here = [start for start in starts if start.instance == 0]
    assert len(here) == 2
    for start in starts:
        if start.instance == 1:
            ends(bench, start.trajectory)
    bench.turn_ends(here[0])
    if is_full:
        # What others hold there leaves no room.
        bench.tell(told.LoadReport, instance=0, clock=10.0, kv_tokens=10**9, step_s=0.01)
    decisions = bench.tell(told.EnvironmentReplied, trajectory=here[0].trajectory, tokens=0, context=12)
    assert one(decisions, do.Start).instance == (1 if is_full else 0), "its KV may be of use there"


def test_a_branch_shorter_than_the_prompt_is_no_longer_than_it_is() -> None:
    bench = make_bench(max_staleness=0)
    (start,) = started(bench)
    bench.turn_ends(start, tokens=30)
    bench.tell(told.EnvironmentReplied, trajectory=start.trajectory, tokens=0, context=3)
    again = bench.made(do.Start)[-1]
    assert (again.prompt_tokens, again.generated_tokens) == (3, 0)
    bench.turn_ends(again, tokens=4)
    assert bench.plane.fleet.instances[0].kv_tokens == 7


def test_another_branch_of_one_that_moves_takes_it_off_both_ends() -> None:
    bench = make_bench(max_staleness=0)
    (start,) = started(bench)
    bench.join(1, kv_tokens=50_000)
    move = one(bench.press(0), do.Move)
    bench.turn_ends(start)
    decisions = bench.tell(told.EnvironmentReplied, trajectory=start.trajectory, tokens=0, context=12)
    assert {abort.instance for abort in only(decisions, do.Abort)} == {move.source, move.target}
    assert one(decisions, do.Start).version == start.version


def test_whoever_comes_back_starts_before_what_is_new_and_smaller() -> None:
    bench = make_bench(groups=3, active_groups=3, max_staleness=0)
    bench.join(0, kv_tokens=1000)
    bench.tick()
    asked = bench.made(do.Open)
    first = one(opened(bench, asked[0], tokens=400), do.Start)
    second = one(opened(bench, asked[1], tokens=300), do.Start)
    bench.turn_ends(first, tokens=10, others_kv=310)
    back = bench.tell(told.EnvironmentReplied, trajectory=first.trajectory, tokens=0, context=640)
    assert not only(back, do.Start), "there is no room for it"
    new = opened(bench, asked[2], tokens=50)
    new += bench.tell(told.LoadReport, instance=0, clock=10.0, kv_tokens=310, step_s=0.01)
    assert not only(new, do.Start), "there is room, and it would be taken from the one that came back"
    again = bench.tell(told.EpisodeEnded, trajectory=second.trajectory, tokens=10)
    assert [start.prompt_tokens + start.generated_tokens for start in only(again, do.Start)] == [640, 50]


def test_whoever_comes_back_starts_before_siblings_that_have_not_begun() -> None:
    bench = make_bench(group_size=3, max_staleness=0)
    bench.join(0, slots=1)
    bench.tick()
    first = one(opened(bench, one(bench.all, do.Open)), do.Start)
    second = one(bench.turn_ends(first), do.Start)
    bench.tell(told.EnvironmentReplied, trajectory=first.trajectory, tokens=0, context=12)
    assert one(bench.turn_ends(second), do.Start).trajectory == first.trajectory


def test_those_that_come_back_start_in_the_order_in_which_they_did() -> None:
    bench = make_bench(group_size=3, max_staleness=0)
    bench.join(0, slots=1)
    bench.tick()
    start = one(opened(bench, one(bench.all, do.Open)), do.Start)
    starts = [start := one(bench.turn_ends(start), do.Start) for _ in range(2)]
    for each in (starts[0], bench.made(do.Start)[0]):
        bench.tell(told.EnvironmentReplied, trajectory=each.trajectory, tokens=0, context=12)
    assert one(bench.turn_ends(starts[1]), do.Start).trajectory == starts[0].trajectory


# --- failures ---


def test_an_environment_that_fails_is_opened_anew_under_the_same_version() -> None:
    bench = make_bench(max_staleness=1, active_groups=2, environment_tries=2)
    start, other = started(bench)
    bench.turn_ends(start)
    ends(bench, other.trajectory)
    bench.publish()
    decisions = bench.tell(told.EnvironmentFailed, trajectory=start.trajectory, reason="exited")
    assert one(decisions, do.Reopen) == do.Reopen(trajectory=start.trajectory, attempt=1)
    assert not only(decisions, do.Start), "it starts when the new environment asks for its first turn"
    bench.tell(told.EnvironmentReplied, trajectory=start.trajectory, tokens=0, context=6)
    bench.tick()
    bench.tell(told.Loaded, instance=0, version=1)
    again = [s for s in bench.made(do.Start) if s.trajectory == start.trajectory][-1]
    assert (again.version, again.attempt, again.prompt_tokens + again.generated_tokens) == (0, 1, 6)
    close = one(bench.tell(told.EnvironmentFailed, trajectory=start.trajectory, reason="exited"), do.Close)
    assert "failed: environment, 2 tries" in {d.outcome for d in bench.made(do.Close)} | {close.outcome}


def test_a_request_that_an_engine_refuses_gets_a_new_environment_too() -> None:
    bench = make_bench(max_staleness=0)
    (start,) = started(bench)
    assert (
        one(bench.tell(told.Refused, trajectory=start.trajectory, reason="too long"), do.Reopen).attempt == 1
    )


def test_the_end_of_an_episode_frees_what_it_holds() -> None:
    bench = make_bench(max_staleness=0)
    (start,) = started(bench)
    bench.turn_ends(start)
    decisions = bench.tell(told.EpisodeEnded, trajectory=start.trajectory, tokens=3)
    assert one(decisions, do.Abort).instance == 0
    assert bench.plane.fleet.instances[0].is_idle
    assert one(bench.tell(told.Scored, trajectory=start.trajectory, reward=1.0), do.Take)


# --- waits end ---


def test_episodes_that_hold_up_the_trainer_alone_are_cut_after_the_grace_and_counted() -> None:
    bench = make_bench(groups=2, group_size=2, max_staleness=0, environment_grace_s=30.0, silence_s=1e9)
    starts = started(bench)
    for start in starts[:3]:
        bench.turn_ends(start)
        ends(bench, start.trajectory)
    bench.turn_ends(starts[3])
    assert not only(bench.tick(after=29.0), do.Cut)
    assert one(bench.tick(after=2.0), do.Cut) == do.Cut(trajectory=starts[3].trajectory, reason="deadline")
    assert not only(bench.tick(), do.Cut), "once is enough"
    assert bench.plane.meters.cut == 1
    assert one(ends(bench, starts[3].trajectory, reward=None, truncated=True), do.Take)
    assert bench.plane.meters.truncated == 1


def test_nobody_is_cut_while_anything_the_batch_needs_generates() -> None:
    bench = make_bench(groups=2, max_staleness=0, environment_grace_s=30.0, silence_s=1e9)
    first, second = started(bench)
    bench.turn_ends(first)
    assert not only(bench.tick(after=100.0), do.Cut)
    bench.turn_ends(second)
    assert not only(bench.tick(after=29.0), do.Cut), "the grace begins when nothing generates any more"
    assert len(only(bench.tick(after=2.0), do.Cut)) == 2


def test_nobody_is_cut_while_the_trainer_trains() -> None:
    bench = make_bench(groups=1, active_groups=2, max_staleness=1, environment_grace_s=1.0, silence_s=1e9)
    first, second = started(bench)
    bench.turn_ends(first)
    ends(bench, second.trajectory)
    assert bench.plane.is_training
    assert not only(bench.tick(after=100.0), do.Cut)


def test_only_as_many_groups_are_cut_as_the_batch_needs() -> None:
    bench = make_bench(
        groups=1, active_groups=3, ahead=3, max_staleness=2, environment_grace_s=1.0, silence_s=1e9
    )
    starts = started(bench)
    for start in starts:
        bench.turn_ends(start)
    assert [d.trajectory for d in only(bench.tick(after=9.0), do.Cut)] == [starts[0].trajectory]


def test_a_reply_that_crosses_a_cut_does_not_bring_the_episode_back() -> None:
    bench = make_bench(max_staleness=0, environment_grace_s=1.0, silence_s=1e9)
    (start,) = started(bench)
    bench.turn_ends(start)
    one(bench.tick(after=9.0), do.Cut)
    bench.tell(told.EnvironmentReplied, trajectory=start.trajectory, tokens=2)
    assert not bench.tell(told.EnvironmentFailed, trajectory=start.trajectory, reason="was told to end")
    decisions = bench.tell(told.EpisodeEnded, trajectory=start.trajectory, tokens=3, truncated=True)
    assert one(decisions, do.Abort).instance == 0


# --- evaluations ---


def evaluation(bench: Bench) -> do.Open:
    asked = bench.tell(told.EvaluationAsked, prompts=(QueuedPrompt(epoch=0, row=3, tokens=5),))
    return one(asked, do.Open)


def test_an_evaluation_starts_once_its_environment_is_reset() -> None:
    bench = make_bench(groups=1)
    bench.join(0)
    bench.tick()
    asked = evaluation(bench)
    assert asked.is_evaluation
    start = one(opened(bench, asked, tokens=8), do.Start)
    assert (start.evaluation, start.prompt_tokens) == (True, 8)
    ends(bench, start.trajectory)
    assert not bench.plane.ledger.evaluating


def test_evaluations_come_first_where_environments_are_few() -> None:
    bench = make_bench(groups=1, ahead=1, max_open=1, max_staleness=0)
    (start,) = started(bench)
    asked = (QueuedPrompt(epoch=0, row=3, tokens=5),)
    assert not only(bench.tell(told.EvaluationAsked, prompts=asked), do.Open)
    bench.turn_ends(start)
    freed = bench.tell(told.EpisodeEnded, trajectory=start.trajectory, tokens=3)
    assert one(freed, do.Open).is_evaluation


def test_an_evaluation_whose_environment_cannot_be_reset_is_closed() -> None:
    bench = make_bench(groups=1)
    bench.join(0)
    bench.tick()
    asked = evaluation(bench)
    failed = bench.tell(told.OpenFailed, epoch=asked.epoch, row=asked.row, reason="no", is_evaluation=True)
    assert one(failed, do.Close).outcome == "failed: environment start"
    assert not bench.plane.ledger.evaluating


def test_an_evaluation_whose_environment_dies_in_the_queue_starts_once() -> None:
    bench = make_bench(groups=1, active_groups=1, max_staleness=0)
    bench.join(0, slots=1)
    bench.tick()
    (first,) = bench.made(do.Open)
    opened(bench, first)
    opened(bench, evaluation(bench))
    (t,) = next(iter(bench.plane.ledger.evaluating.values())).members
    assert t.phase == Phase.PENDING
    bench.tell(told.EnvironmentFailed, trajectory=t.id, reason="exited")
    bench.tell(told.EnvironmentReplied, trajectory=t.id, tokens=0, context=6)
    bench.turn_ends(bench.made(do.Start)[0])
    bench.tick()
    assert [s.attempt for s in bench.made(do.Start) if s.evaluation] == [1]


# --- KV of those that wait ---


def scarce(
    *, wait_s: float, prefill_s: float, copy_s: float = 1.0, host_kv_tokens: int = 0
) -> tuple[Bench, do.Start]:
    """An instance with one that is about to wait, one that decodes, and no room for a third."""
    bench = make_bench(groups=3, active_groups=3, max_staleness=0)
    for _ in range(20):
        bench.plane.estimates.waits.observe(wait_s)
    for step in range(1, 10):
        bench.plane.estimates.prefills(1000)
        bench.plane.estimates.copies(1000)
        seconds = InstanceSeconds(prefill_s=1000 * prefill_s * step, kv_moves_s=1000 * copy_s * step)
        bench.plane.estimates.instances_told({0: seconds})
    bench.join(0, kv_tokens=1000, host_kv_tokens=host_kv_tokens)
    bench.tick()
    first, second, third = bench.made(do.Open)
    waiting = one(opened(bench, first, tokens=500), do.Start)
    opened(bench, second, tokens=300)
    assert not only(opened(bench, third, tokens=300), do.Start), "there is no room"
    return bench, waiting


def test_kv_that_waits_longer_than_its_prefill_would_take_makes_room() -> None:
    bench, waiting = scarce(wait_s=60.0, prefill_s=0.001)
    decisions = bench.turn_ends(waiting, tokens=10, others_kv=310)
    assert one(decisions, do.Evict).trajectory == waiting.trajectory
    assert one(decisions, do.Start).trajectory != waiting.trajectory


def test_kv_that_is_cheaper_to_copy_than_to_compute_is_parked_and_comes_back() -> None:
    # Too dear to be computed again for a wait of 60 s, and copied within a second.
    bench, waiting = scarce(wait_s=60.0, prefill_s=1.0, copy_s=0.0005, host_kv_tokens=600)
    decisions = bench.turn_ends(waiting, tokens=10, others_kv=310)
    assert one(decisions, do.Park) == do.Park(instance=0, trajectory=waiting.trajectory)
    assert not only(decisions, do.Evict)
    assert one(decisions, do.Start).trajectory != waiting.trajectory
    instance = bench.plane.fleet.instances[0]
    assert (instance.host_room, instance.num_waiting) == (90, 0)
    again = bench.tell(told.EnvironmentReplied, trajectory=waiting.trajectory, tokens=5)
    assert one(again, do.Resume).instance == 0
    assert instance.host_room == 600
    bench.plane.check_integrity()


def test_kv_that_host_memory_has_no_room_for_is_dropped() -> None:
    bench, waiting = scarce(wait_s=60.0, prefill_s=0.001, copy_s=0.0001, host_kv_tokens=100)
    decisions = bench.turn_ends(waiting, tokens=10, others_kv=310)
    assert one(decisions, do.Evict).trajectory == waiting.trajectory
    assert not only(decisions, do.Park)


def test_kv_that_is_dearer_to_copy_than_to_compute_is_dropped() -> None:
    bench, waiting = scarce(wait_s=60.0, prefill_s=0.001, copy_s=0.0006, host_kv_tokens=600)
    assert not only(bench.turn_ends(waiting, tokens=10, others_kv=310), do.Park)


def test_parked_kv_dies_with_its_instance_and_the_turn_starts_behind_its_tokens() -> None:
    bench, waiting = scarce(wait_s=60.0, prefill_s=1.0, copy_s=0.0005, host_kv_tokens=600)
    assert only(bench.turn_ends(waiting, tokens=10, others_kv=310), do.Park)
    bench.tell(told.InstanceLost, instance=0, reason="died")
    bench.join(1, kv_tokens=2000)
    again = bench.tell(told.EnvironmentReplied, trajectory=waiting.trajectory, tokens=5)
    start = one(again, do.Start)
    assert (start.trajectory, start.instance) == (waiting.trajectory, 1)
    assert (start.prompt_tokens, start.generated_tokens) == (500, 15)
    bench.plane.check_integrity()


def test_kv_whose_environment_is_quick_stays() -> None:
    bench, waiting = scarce(wait_s=0.1, prefill_s=0.001)
    assert not only(bench.turn_ends(waiting, tokens=10, others_kv=310), do.Evict)


def test_kv_that_is_dear_to_compute_again_stays() -> None:
    bench, waiting = scarce(wait_s=60.0, prefill_s=1.0)
    assert not only(bench.turn_ends(waiting, tokens=10, others_kv=310), do.Evict)


def test_what_prefill_costs_is_learned_before_the_first_step_is_over() -> None:
    bench, waiting = scarce(wait_s=5.0, prefill_s=0.01)
    bench.plane.estimates.prefills(100_000)
    said = {0: InstanceSeconds(prefill_s=9 * 1000 * 0.01 + 1.0)}
    bench.tell(told.Tick, instances=said)
    assert only(bench.turn_ends(waiting, tokens=10, others_kv=310), do.Evict), "five seconds are long now"


def test_kv_stays_where_nobody_needs_the_room() -> None:
    bench = make_bench(max_staleness=0)
    for _ in range(20):
        bench.plane.estimates.waits.observe(600.0)
    (start,) = started(bench)
    assert not only(bench.turn_ends(start), do.Evict)


def test_what_comes_back_gets_the_room_of_those_that_wait_where_nothing_decodes() -> None:
    bench = make_bench(groups=2, active_groups=2, max_staleness=0)
    bench.join(0, kv_tokens=1000)
    bench.tick()
    first, second = bench.made(do.Open)
    long = one(opened(bench, first, tokens=400), do.Start)
    short = one(opened(bench, second, tokens=300), do.Start)
    bench.turn_ends(long, tokens=10, others_kv=310)
    bench.turn_ends(short, tokens=10, others_kv=410)
    again = bench.tell(told.EnvironmentReplied, trajectory=short.trajectory, tokens=0, context=800)
    assert [each.trajectory for each in only(again, do.Evict)] == [short.trajectory, long.trajectory]
    assert one(again, do.Start).trajectory == short.trajectory


def test_expected_waits_are_those_of_the_longer_ones() -> None:
    waits = EnvironmentWaits()
    assert waits.remaining(3.0) == 3.0, "nothing was seen: as long again"
    for seconds in (1.0, 2.0, 10.0, 20.0):
        waits.observe(seconds)
    assert waits.remaining(0.0) == pytest.approx(33.0 / 4)
    assert waits.remaining(5.0) == pytest.approx(10.0)
    assert waits.remaining(40.0) == 40.0


def test_of_very_many_that_wait_enough_are_dropped_for_one_that_is_large() -> None:
    bench = make_bench(groups=200, active_groups=200, max_staleness=0)
    bench.join(0, kv_tokens=60_000, slots=300)
    bench.tick()
    starts = [one(opened(bench, each, tokens=100), do.Start) for each in bench.made(do.Open)]
    for number, start in enumerate(starts):
        bench.turn_ends(start, tokens=0, others_kv=100 * (len(starts) - 1 - number) + 100 * number)
    large = starts[0].trajectory
    again = bench.tell(told.EnvironmentReplied, trajectory=large, tokens=0, context=55_000)
    assert one(again, do.Start).trajectory == large
    assert len(only(again, do.Evict)) > 150, "nothing decodes, so all that is needed goes"
    bench.plane.check_integrity()
