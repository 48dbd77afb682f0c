"""The control plane in single situations: each was once answered wrongly, or easily could be."""

import pytest

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.inputs import QueuedPrompt

from .bench import Bench, one, only

# --- the trainer --------------------------------------------------------------------------------


def test_a_step_lost_by_an_idle_trainer_gives_no_batch_back() -> None:
    bench = Bench(groups=2)
    bench.join(0)
    bench.tick()
    bench.tell(told.StepLost, reason="crashed while idle")
    assert bench.plane.window.taken == 0
    bench.run_steps(2)
    assert [take.batch for take in bench.made(do.Take)][:2] == [0, 1]


def test_a_lost_step_takes_the_same_batch_again() -> None:
    bench = Bench(groups=2, max_staleness=0)
    bench.join(0)
    first, second = only(bench.tick(), do.Start)
    bench.end(first)
    take = one(bench.end(second), do.Take)
    assert one(bench.tell(told.StepLost, reason="crash"), do.Take) == take


def test_what_an_idle_trainer_was_handed_is_handed_over_again_after_a_crash() -> None:
    bench = Bench(groups=2, max_staleness=0, stream=True)
    bench.join(0)
    first, _ = only(bench.tick(), do.Start)
    hand = one(bench.end(first), do.Hand)
    assert only(bench.tell(told.StepLost, reason="crash"), do.Hand) == [hand]


def test_the_run_ends_after_exactly_its_steps_with_nothing_left() -> None:
    bench = Bench(groups=3, group_size=2, steps=4)
    bench.join(0)
    bench.tick()
    bench.run_steps(4)
    assert bench.plane.is_done
    assert len(bench.made(do.Finish)) == 1
    assert len(bench.made(do.Admit)) == 4 * 3
    assert not bench.plane.ledger.groups


@pytest.mark.parametrize(
    "schedule",
    ["sync", "one_step_off", "steps_off", "partial", "counted", "async_ratio", "dora_onset", "dora"],
)
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_run_that_is_done_goes_on_with_more_steps(schedule: str, is_resumed: bool) -> None:
    staleness = {"sync": 0, "one_step_off": 1}.get(schedule, 2)
    bench = Bench(groups=3, group_size=2, steps=4, schedule=schedule, max_staleness=staleness)
    bench.join(0)
    bench.tick()
    bench.run_steps(4)
    assert bench.plane.is_done
    if is_resumed:
        bench.tell(told.InstanceLost, instance=0, reason="the run was resumed")
    bench.tell(told.StepsExtended, steps=7)
    assert not bench.plane.is_done
    if is_resumed:
        bench.join(0, version=4)
    bench.run_steps(3)
    assert bench.plane.is_done
    assert [take.batch for take in bench.made(do.Take)] == list(range(7))
    assert not bench.plane.ledger.groups


def test_a_run_that_is_extended_before_its_end_admits_for_the_new_one() -> None:
    bench = Bench(groups=3, group_size=2, steps=4)
    bench.join(0)
    bench.tick()
    bench.run_steps(2)
    bench.tell(told.StepsExtended, steps=6)
    bench.run_steps(4)
    assert bench.plane.is_done
    assert len(bench.made(do.Finish)) == 1


def test_what_is_told_for_the_record_changes_no_decision() -> None:
    plain, told_more = Bench(groups=2), Bench(groups=2)
    for bench in (plain, told_more):
        bench.join(0)
        bench.tick()
        if bench is told_more:
            assert bench.tell(told.Fault, worker="the trainer", reason="killed by SIGKILL") == []
            assert bench.tell(told.Replayed, batch=0, num_different=3) == []
            assert bench.tell(told.CheckpointDamaged, problem="masters are torn", version=0) == []
        bench.run_steps(2)
    assert plain.made(do.Take) == told_more.made(do.Take)
    assert plain.made(do.Start) == told_more.made(do.Start)


# --- instances that die, hang and come back -----------------------------------------------------


def test_an_instance_that_comes_back_before_anyone_noticed_has_lost_its_requests() -> None:
    bench = Bench(max_staleness=0)
    bench.join(0)
    start = one(bench.tick(), do.Start)
    again = one(bench.join(0), do.Start)
    assert again.trajectory == start.trajectory


def test_a_dead_instances_trajectory_continues_under_its_version() -> None:
    bench = Bench(max_staleness=3, active_groups=1)
    bench.join(0)
    first, pinned = only(bench.tick(), do.Start)
    bench.end(first)
    bench.publish()
    bench.tell(told.LoadReport, instance=0, clock=30.0, kv_tokens=35, step_s=0.01)
    bench.tell(told.InstanceLost, instance=0, reason="died")
    bench.join(1, version=1, max_versions=2)
    bench.tick()
    bench.tell(told.Loaded, instance=1, version=0)
    again = [start for start in bench.made(do.Start) if start.trajectory == pinned.trajectory]
    assert [start.instance for start in again] == [0, 1]
    assert [start.version for start in again] == [0, 0]
    assert again[1].generated_tokens > 0


def test_an_instance_that_cannot_continue_starts_from_nothing() -> None:
    bench = Bench(max_staleness=0)
    bench.join(0)
    start = one(bench.tick(), do.Start)
    bench.turn_ends(start, tokens=7)
    bench.tell(told.InstanceLost, instance=0, reason="died")
    bench.join(1, continues=False)
    again = one(bench.tell(told.EnvironmentReplied, trajectory=start.trajectory, tokens=2), do.Start)
    assert (again.generated_tokens, again.attempt) == (0, 1)


@pytest.mark.parametrize("is_idle", [True, False])
def test_whoever_falls_silent_is_restarted(is_idle: bool) -> None:
    bench = Bench(max_staleness=0)
    bench.join(0)
    bench.tick()
    if is_idle:
        bench.end(bench.made(do.Start)[0])
    assert one(bench.tick(after=61.0), do.Restart).instance == 0


def test_an_instance_that_hangs_while_it_loads_is_restarted() -> None:
    bench = Bench(max_staleness=0)
    bench.join(0)
    bench.tick()
    bench.end(bench.made(do.Start)[0])
    assert one(bench.publish(), do.Load).instance == 0
    assert one(bench.tick(after=61.0), do.Restart).instance == 0


def test_an_instance_that_hangs_while_it_returns_is_restarted() -> None:
    bench = Bench(max_staleness=0)
    bench.join(0, elastic=True)
    bench.tick()
    assert only(bench.end(bench.made(do.Start)[0]), do.Lend)
    bench.tick(after=600.0)
    assert not bench.made(do.Restart), "its devices train: it need not say anything"
    assert one(bench.publish(), do.Return).instance == 0
    bench.tick()
    assert not bench.made(do.Restart), "it has only just been given back"
    assert one(bench.tick(after=61.0), do.Restart).instance == 0


def test_an_instance_goes_on_when_the_step_is_computed_and_not_only_when_it_is_durable() -> None:
    bench = Bench(max_staleness=0)
    bench.join(0, elastic=True)
    bench.tick()
    assert not bench.tell(told.Trained), "nothing trains"
    assert only(bench.end(bench.made(do.Start)[0]), do.Lend)
    assert one(bench.tell(told.Trained), do.Return).instance == 0
    assert not bench.tell(told.Trained), "it was given back"
    assert not only(bench.publish(), do.Return)


def test_devices_are_lent_after_the_batch_is_taken_and_its_onset_is_over() -> None:
    """They decode while the batch is on its way to the trainer."""
    bench = Bench(schedule="dora_onset", max_staleness=2, active_groups=2)
    bench.join(0, slots=2)
    bench.join(1, elastic=True)
    first, second = sorted(only(bench.tick(), do.Start), key=lambda start: start.instance)
    decisions = bench.end(second)
    kinds = [type(decision) for decision in decisions]
    assert kinds[-1] is do.Lend
    assert kinds.index(do.Take) < kinds.index(do.Admit) < kinds.index(do.Lend)
    assert all(start.instance == first.instance for start in only(decisions, do.Start))


@pytest.mark.parametrize("parks", [True, False])
def test_only_an_instance_that_parks_on_command_is_told_to(parks: bool) -> None:
    bench = Bench(group_size=4, max_staleness=0)
    bench.join(0, kv_tokens=4000, parks=parks)
    bench.tick()
    decisions = bench.tell(told.KvPressure, instance=0, clock=900.0, kv_tokens=3900)
    assert bool(only(decisions, do.Park)) is parks


def test_devices_stay_with_a_trainer_that_has_its_next_batch() -> None:
    bench = Bench(max_staleness=1, active_groups=2)
    bench.join(0)
    bench.join(1, elastic=True)
    first, second = sorted(only(bench.tick(), do.Start), key=lambda start: start.instance)
    assert [first.instance, second.instance] == [0, 1]
    bench.end(second)
    bench.end(first)
    assert len(bench.made(do.Take)) == len(bench.made(do.Lend)) == 1
    assert not bench.tell(told.Trained), "the next step begins as soon as this one is durable"
    assert only(bench.publish(), do.Take)
    assert one(bench.tell(told.Trained), do.Return).instance == 1


def test_an_instance_that_comes_back_waits_for_the_version_about_to_be_published() -> None:
    bench = Bench(max_staleness=0)
    bench.join(0, elastic=True)
    bench.tick()
    bench.end(bench.made(do.Start)[0])
    assert not only(bench.tell(told.Trained), do.Load)
    bench.tell(told.Returned, instance=0)
    assert one(bench.publish(), do.Load).version == 1


def test_whoever_loaded_what_is_no_longer_the_newest_loads_the_newest_at_once() -> None:
    """It once stood idle until the next tick."""
    bench = Bench(max_staleness=1, active_groups=2)
    bench.join(0)
    first, second = only(bench.tick(), do.Start)
    bench.end(first)
    bench.end(second)
    assert one(bench.publish(), do.Load).version == 1
    assert not only(bench.publish(), do.Load), "it is loading"
    assert one(bench.tell(told.Loaded, instance=0, version=1), do.Load).version == 2
    assert len(only(bench.tell(told.Loaded, instance=0, version=2), do.Start)) == 2


def test_an_instance_is_given_back_once() -> None:
    """The next step ends before the instance has returned from the first."""
    bench = Bench(max_staleness=2, active_groups=2)
    bench.join(0)
    bench.join(1, elastic=True)
    bench.tick()
    bench.run_steps(4)
    assert len(bench.made(do.Take)) >= 4
    assert len(bench.made(do.Return)) == len(bench.made(do.Lend)) == 1


# --- moves --------------------------------------------------------------------------------------


def moving_request(**control: object) -> tuple[Bench, do.Start, do.Move]:
    """Two instances, and one request on its way from 0 to 1."""
    bench = Bench(max_staleness=0, **control)
    bench.join(0)
    start = one(bench.tick(), do.Start)
    bench.join(1)
    return bench, start, one(bench.press(0), do.Move)


def test_a_turn_that_ends_as_its_request_moves_goes_on_at_the_target() -> None:
    bench, start, move = moving_request()
    bench.turn_ends(start)
    bench.tell(told.Moved, trajectory=start.trajectory, source=0, target=1, kv_bytes=8)
    resume = one(bench.tell(told.EnvironmentReplied, trajectory=start.trajectory, tokens=2), do.Resume)
    assert resume.instance == move.target == 1


def test_a_trajectory_that_ends_as_it_moves_has_ended() -> None:
    bench, start, _ = moving_request()
    assert only(bench.end(start), do.Take)
    bench.tell(told.MoveFailed, trajectory=start.trajectory, reason="it had ended")


def test_a_failed_move_starts_again_wherever_there_is_room() -> None:
    bench, start, _ = moving_request()
    decisions = bench.tell(told.MoveFailed, trajectory=start.trajectory, reason="no route")
    assert {abort.instance for abort in only(decisions, do.Abort)} == {0, 1}
    assert one(decisions, do.Start).trajectory == start.trajectory


def test_a_failed_move_of_a_waiting_request_is_not_resumed_where_it_never_arrived() -> None:
    bench, start, _ = moving_request()
    bench.turn_ends(start)
    bench.tell(told.MoveFailed, trajectory=start.trajectory, reason="no route")
    decisions = bench.tell(told.EnvironmentReplied, trajectory=start.trajectory, tokens=2)
    assert one(decisions, do.Start).generated_tokens == 3 + 2
    assert not only(decisions, do.Resume)


@pytest.mark.parametrize(("dies", "other"), [(0, 1), (1, 0)])
def test_a_move_whose_end_died_leaves_no_second_copy(dies: int, other: int) -> None:
    """Whether it left the source or reached the target in time, nobody can tell."""
    bench, start, _ = moving_request()
    decisions = bench.tell(told.InstanceLost, instance=dies, reason="died")
    assert one(decisions, do.Abort).instance == other
    assert one(decisions, do.Start).instance == other
    assert decisions.index(one(decisions, do.Abort)) < decisions.index(one(decisions, do.Start))
    assert one(decisions, do.Start).trajectory == start.trajectory


def test_a_stale_word_of_an_earlier_move_changes_nothing() -> None:
    bench, start, _ = moving_request()
    bench.join(2)
    bench.tell(told.InstanceLost, instance=1, reason="died")
    bench.tell(told.Moved, trajectory=start.trajectory, source=0, target=1, kv_bytes=8)


# --- versions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rebalance", [True, False])
@pytest.mark.parametrize("placement", ["auto", "exclusive", "shared"])
def test_an_old_version_gets_a_place_although_only_one_fits(placement: str, rebalance: bool) -> None:
    """Its instance died and came back with the newest version; nobody else serves the old one."""
    bench = Bench(max_staleness=1, active_groups=2, placement=placement, rebalance=rebalance)
    bench.join(0)
    first, second = only(bench.tick(), do.Start)
    bench.end(first)
    bench.publish()
    bench.tell(told.InstanceLost, instance=0, reason="died")
    bench.join(0, version=1)
    for start in bench.made(do.Start)[2:]:
        bench.end(start)
    bench.tick()
    load = bench.made(do.Load)[-1]
    assert (load.version, load.drop) == (0, (1,))
    decisions = bench.tell(told.Loaded, instance=0, version=0)
    assert one(decisions, do.Start).trajectory == second.trajectory


def test_a_load_that_an_interruption_overtook_is_not_the_version_that_serves() -> None:
    bench = Bench(schedule="partial", groups=1, max_staleness=2, active_groups=2)
    bench.join(0)
    bench.join(1)
    bench.tick()
    starts = bench.made(do.Start)
    bench.end(starts[0])
    bench.publish()
    bench.end(starts[1])
    bench.publish()
    assert len(bench.made(do.Interrupt)) == 4
    assert not only(bench.tell(told.Loaded, instance=0, version=1), do.Start)
    assert not only(bench.tick(), do.Start)
    assert only(bench.tell(told.Loaded, instance=0, version=2), do.Start)


def test_a_retired_version_is_never_started_again() -> None:
    """An instance joins with weights that everybody else has forgotten."""
    bench = Bench(max_staleness=3, active_groups=1, rebalance=False)
    bench.join(0)
    bench.tick()
    bench.run_steps(2)
    assert 0 in [retired.version for retired in bench.made(do.Retire)]
    starts = only([*bench.join(1, version=0), *bench.tick()], do.Start)
    assert all(start.version != 0 for start in starts)


def test_batch_scheduling_deals_out_to_those_that_serve() -> None:
    """An instance that is still loading gets nothing."""
    bench = Bench(groups=2, max_staleness=0, queue_scheduling=False)
    bench.join(0)
    bench.join(1)
    for start in only(bench.tick(), do.Start):
        bench.end(start)
    assert {load.instance for load in only(bench.publish(), do.Load)} == {0, 1}
    decisions = bench.tell(told.Loaded, instance=1, version=1)
    assert {start.instance for start in only(decisions, do.Start)} == {1}


def test_a_request_that_fits_nowhere_else_starts_on_an_empty_instance() -> None:
    """It was moved off a larger instance; the watermark must not keep it waiting forever."""
    bench = Bench(max_staleness=0, prompt_tokens=98)
    assert not bench.join(0, kv_tokens=100)
    assert only(bench.tick(), do.Start)


# --- schedules, filters and evaluation ----------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    ["sync", "one_step_off", "steps_off", "dora_onset", "dora", "async_ratio", "partial", "counted"],
)
def test_a_filtered_group_is_replaced_under_every_schedule(schedule: str) -> None:
    bench = Bench(group_size=2, schedule=schedule, max_staleness=0, filter_zero_variance=True)
    bench.join(0)
    starts = only(bench.tick(), do.Start)[:2]
    bench.end(starts[0], reward=1.0)
    decisions = bench.end(starts[1], reward=1.0)
    assert one(decisions, do.Close).outcome == "filtered: zero variance"
    assert only(decisions, do.Admit)


def test_a_group_goes_on_without_members_that_failed_for_good() -> None:
    bench = Bench(group_size=3, max_staleness=0, min_members=2, environment_tries=1)
    bench.join(0)
    a, b, c = only(bench.tick(), do.Start)
    closed = one(bench.tell(told.EnvironmentFailed, trajectory=a.trajectory, reason="broke"), do.Close)
    assert (closed.members, closed.outcome) == ((a.trajectory,), "failed: environment, 1 tries")
    bench.end(b)
    assert only(bench.end(c), do.Take)


def test_a_request_that_an_engine_refuses_is_tried_again_and_given_up_like_a_broken_environment() -> None:
    bench = Bench(group_size=3, max_staleness=0, min_members=2, environment_tries=2)
    bench.join(0)
    a, *_ = only(bench.tick(), do.Start)
    again = one(bench.tell(told.Refused, trajectory=a.trajectory, reason="too long"), do.Start)
    assert (again.trajectory, again.attempt) == (a.trajectory, 1)
    closed = one(bench.tell(told.Refused, trajectory=a.trajectory, reason="too long"), do.Close)
    assert (closed.members, closed.outcome) == ((a.trajectory,), "failed: engine, 2 tries")


def test_too_few_members_left_close_the_group_and_another_starts() -> None:
    bench = Bench(group_size=2, max_staleness=0, min_members=2, environment_tries=1)
    bench.join(0)
    a, b = only(bench.tick(), do.Start)
    decisions = bench.tell(told.EnvironmentFailed, trajectory=a.trajectory, reason="broke")
    closed = {key for close in only(decisions, do.Close) for key in close.members}
    assert closed == {a.trajectory, b.trajectory}
    assert only(decisions, do.Admit)


def test_an_evaluation_keeps_its_version_alive_until_it_ends() -> None:
    bench = Bench(max_staleness=0)
    bench.join(0)
    bench.join(1)
    bench.tick()
    evaluation = one(
        bench.tell(told.EvaluationAsked, prompts=(QueuedPrompt(epoch=0, row=3, tokens=5),)), do.Start
    )
    assert (evaluation.evaluation, evaluation.row) == (True, 3)
    bench.end(next(s for s in bench.made(do.Start) if not s.evaluation))
    bench.publish()
    for load in bench.made(do.Load):
        bench.tell(told.Loaded, instance=load.instance, version=load.version)
    assert not bench.made(do.Retire)
    bench.end(evaluation)
    bench.tick()
    for load in bench.made(do.Load):
        bench.tell(told.Loaded, instance=load.instance, version=load.version)
    assert [retired.version for retired in bench.made(do.Retire)] == [0]


def test_the_last_version_is_loaded_at_once_for_its_evaluation() -> None:
    bench = Bench(max_staleness=0, steps=1)
    bench.join(0)
    bench.end(one(bench.tick(), do.Start))
    bench.publish()
    assert bench.plane.is_done
    decisions = bench.tell(told.EvaluationAsked, prompts=(QueuedPrompt(epoch=0, row=3, tokens=5),))
    assert [load.version for load in only(decisions, do.Load)] == [1]
    assert one(bench.tell(told.Loaded, instance=0, version=1), do.Start).evaluation


def test_an_evaluation_that_fails_for_good_is_told() -> None:
    bench = Bench(max_staleness=0, environment_tries=1)
    bench.join(0)
    bench.tick()
    evaluation = one(
        bench.tell(told.EvaluationAsked, prompts=(QueuedPrompt(epoch=0, row=0, tokens=5),)), do.Start
    )
    failed = bench.tell(told.EnvironmentFailed, trajectory=evaluation.trajectory, reason="broke")
    assert one(failed, do.Close).members == (evaluation.trajectory,)
    assert not bench.plane.ledger.outcomes, "an evaluation is none of law 2's business"


def test_partial_rollout_goes_on_under_the_newest_version_even_from_nowhere() -> None:
    """Its instance died while its environment had the turn; meanwhile two versions came and one went."""
    bench = Bench(schedule="partial", max_staleness=3, active_groups=2)
    bench.join(0)
    bench.join(1)
    first, waits = only(bench.tick(), do.Start)
    bench.turn_ends(waits)
    bench.tell(told.InstanceLost, instance=waits.instance, reason="died")
    bench.end(first)
    bench.publish()
    bench.tell(told.Loaded, instance=first.instance, version=1)
    decisions = bench.tell(told.EnvironmentReplied, trajectory=waits.trajectory, tokens=2)
    assert one(decisions, do.Start).version == 1


def test_partial_rollout_keeps_what_waits_for_a_place_through_every_publish() -> None:
    """With no instance left, versions go by over a request that waits: none may take it along."""
    bench = Bench(schedule="partial", max_staleness=3, active_groups=4)
    bench.join(0)
    *ending, waits = only(bench.tick(), do.Start)
    for start in ending:
        bench.end(start)
    bench.tell(told.InstanceLost, instance=0, reason="died")
    for _ in ending:
        bench.publish()
    again = only(bench.join(1, version=3), do.Start)[0]
    assert (again.trajectory, again.version) == (waits.trajectory, 3)


def test_a_request_that_goes_on_before_it_arrived_is_not_moved_again() -> None:
    bench, start, _ = moving_request()
    bench.turn_ends(start)
    bench.tell(told.EnvironmentReplied, trajectory=start.trajectory, tokens=2)
    bench.join(2)
    assert not only(bench.press(1), do.Move)
    bench.tell(told.Moved, trajectory=start.trajectory, source=0, target=1, kv_bytes=8)
    assert one(bench.press(1), do.Move).source == 1


def test_an_evaluation_does_not_wait_for_another_versions_place() -> None:
    bench = Bench(max_staleness=0, evaluation_share=1.0)
    bench.join(0)
    bench.end(one(bench.tick(), do.Start))
    bench.tell(told.InstanceLost, instance=0, reason="died")
    bench.tell(told.EvaluationAsked, prompts=(QueuedPrompt(epoch=0, row=1, tokens=5),))
    bench.publish()
    bench.tell(told.EvaluationAsked, prompts=(QueuedPrompt(epoch=0, row=2, tokens=5),))
    starts = only(bench.join(0, version=1, max_versions=2), do.Start)
    assert [start.row for start in starts if start.evaluation] == [2]


def test_redundant_groups_start_beyond_need_and_end_when_the_batch_is_complete() -> None:
    bench = Bench(schedule="async_ratio", groups=2, group_size=2, max_staleness=0, redundant_groups=2)
    bench.join(0)
    starts = only(bench.tick(), do.Start)
    assert len(bench.made(do.Admit)) == 2 + 2
    for start in starts[2:6]:
        decisions = bench.end(start)
    assert one(decisions, do.Take).groups == (1, 2)
    closed = {close.group: close.outcome for close in only(decisions, do.Close)}
    assert closed == {0: "aborted: redundant", 3: "aborted: redundant"}
    assert {abort.trajectory for abort in only(decisions, do.Abort)} == {0, 1, 6, 7}
    assert not bench.plane.ledger.groups


def test_redundant_members_start_and_end_when_the_others_are_scored() -> None:
    bench = Bench(schedule="async_ratio", groups=1, group_size=4, max_staleness=0, redundant_members=1)
    bench.join(0)
    starts = only(bench.tick(), do.Start)
    for start in starts[:2]:
        assert not only(bench.end(start), do.Take)
    decisions = bench.end(starts[3])
    assert one(decisions, do.Take).groups == (0,)
    close = one(decisions, do.Close)
    assert (close.members, close.outcome) == ((2,), "aborted: redundant member")
    assert one(decisions, do.Abort).trajectory == 2
    assert [decisions.index(close) < i for i, d in enumerate(decisions) if isinstance(d, do.Take)] == [True]
    bench.publish()
    assert bench.plane.ledger.num_committed == 3
    assert not bench.end(starts[2]), "what it ends in is no longer asked for"


def test_a_member_that_fails_is_one_of_the_redundant() -> None:
    bench = Bench(
        schedule="async_ratio", groups=1, group_size=4, max_staleness=0, redundant_members=1,
        environment_tries=1,
    )  # fmt: skip
    bench.join(0)
    starts = only(bench.tick(), do.Start)
    bench.tell(told.EnvironmentFailed, trajectory=starts[0].trajectory, reason="broken")
    for start in starts[1:3]:
        assert not only(bench.end(start), do.Take)
    assert one(bench.end(starts[3]), do.Take).groups == (0,)
    assert {close.outcome for close in bench.made(do.Close)} == {"failed: environment, 1 tries"}


def test_sync_puts_long_prompts_off_to_a_round_of_their_own() -> None:
    """Of three groups two are trained on, the third waits; two that waited make a round without a third."""
    bench = Bench(schedule="sync", groups=2, redundant_groups=1, steps=9)
    bench.join(0)
    starts, rounds = only(bench.tick(), do.Start), []
    for _ in range(3):
        rounds.append([start.row for start in starts])
        for start in starts[-2:]:
            decisions = bench.end(start)
        assert one(decisions, do.Take)
        bench.publish()
        loaded = bench.tell(told.Loaded, instance=0, version=bench.plane.window.newest)
        starts = only(loaded, do.Start)
    assert [len(rows) for rows in rounds] == [3, 3, 2]
    assert rounds[2] == [rounds[0][0], rounds[1][0]], "the long ones come again, together"
    assert [close.outcome for close in bench.made(do.Close)] == ["put off: long"] * 2
    assert len(starts) == 3
    assert {take.staleness for take in bench.made(do.Take)} == {(0, 0)}


def test_prompts_that_were_put_off_are_not_left_over_when_the_source_ends() -> None:
    bench = Bench(schedule="sync", groups=2, redundant_groups=1, steps=2)
    bench.has_prompts = False
    bench.join(0)
    offered = tuple(QueuedPrompt(epoch=0, row=row, tokens=5) for row in range(4))
    bench.tell(told.PromptsOffered, prompts=offered, is_last=True)
    starts = only(bench.tick(), do.Start)
    for start in starts[1:]:
        bench.end(start)
    bench.publish()
    starts = only(bench.tell(told.Loaded, instance=0, version=1), do.Start)
    assert [start.row for start in starts] == [0, 3]


def test_redundant_groups_do_not_start_where_no_batch_could_hold_them() -> None:
    """While the step trains, its version has no later batch to be in."""
    bench = Bench(schedule="async_ratio", groups=1, max_staleness=0, redundant_groups=3)
    bench.join(0)
    bench.end(only(bench.tick(), do.Start)[0])
    bench.tick()
    assert len(bench.made(do.Admit)) == 1 + 3


def test_an_evaluation_that_lost_its_instance_does_not_keep_the_others_from_theirs() -> None:
    """The share is one slot; its holder waits for version 0, and version 1 has the only instance."""
    bench = Bench(max_staleness=0)
    bench.join(0)
    bench.end(one(bench.tick(), do.Start))
    assert one(
        bench.tell(told.EvaluationAsked, prompts=(QueuedPrompt(epoch=0, row=1, tokens=5),)), do.Start
    ).evaluation
    bench.tell(told.InstanceLost, instance=0, reason="died")
    bench.publish()
    bench.tell(told.EvaluationAsked, prompts=(QueuedPrompt(epoch=0, row=2, tokens=5),))
    starts = only(bench.join(0, version=1, max_versions=2), do.Start)
    assert [start.row for start in starts if start.evaluation] == [2]
