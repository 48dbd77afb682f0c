"""Every second of an instance and of the trainer went to exactly one thing, whatever happened in the run."""

import json
from pathlib import Path

import pytest

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.history import History, HistoryWriter
from dora_rl.core.instance_seconds import InstanceSeconds
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Recipe
from dora_rl.costs.seconds_meter import SecondsMeter
from dora_rl.costs.seconds_spent import SecondsSpent, Spent
from dora_rl.sim.simulated_run import build_world, run_world, simulate

from .recipes import SCHEDULES, random_recipe, small

SPEC = InstanceSpec(slots=8, kv_tokens=1000)


def meter_of(recipe: Recipe) -> SecondsMeter:
    return SecondsMeter(batch_groups=recipe.batch.groups, group_size=recipe.batch.group_size)


def spent(recipe: Recipe) -> SecondsSpent:
    meter = meter_of(recipe)
    simulate(recipe, [meter.watch])
    return meter.result()


def check_sums(seconds: SecondsSpent) -> None:
    for account in (seconds, *seconds.steps):
        of_all = seconds.num_instances * account.wall_s
        assert sum(account.instances.values()) == pytest.approx(of_all, rel=1e-9, abs=1e-9)
        assert sum(account.trainer.values()) == pytest.approx(account.wall_s, rel=1e-9, abs=1e-9)
        assert sum(account.behind.values()) == pytest.approx(account.instances.get(Spent.GENERATING, 0.0))
        assert min(*account.instances.values(), *account.trainer.values()) >= -1e-9
    assert sum(seconds.by_version.values()) == pytest.approx(seconds.instances.get(Spent.GENERATING, 0.0))


@pytest.mark.parametrize("seed", range(60))
def test_the_seconds_of_any_run_add_up_to_its_wall_time(seed: int) -> None:
    recipe = random_recipe(seed)
    world, meter = build_world(recipe), meter_of(recipe)
    run_world(world, [meter.watch])
    seconds = meter.result()
    assert seconds.wall_s == pytest.approx(world.now)
    assert seconds.num_instances >= len(world.engines)
    check_sums(seconds)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_was_generated_and_trained_is_what_the_world_did(schedule: str) -> None:
    recipe = small(schedule=schedule)
    world, meter = build_world(recipe), meter_of(recipe)
    run_world(world, [meter.watch])
    seconds = meter.result()
    decoded_s = sum(engine.busy_s for engine in world.engines.values())
    assert seconds.instances[Spent.GENERATING] == pytest.approx(decoded_s, rel=1e-3)
    stepped_s = sum(end - begin for begin, end in world.train_spans)
    in_steps = seconds.trainer[Spent.TRAINING] + seconds.trainer[Spent.PUBLISHING]
    assert in_steps == pytest.approx(stepped_s)


def test_the_event_log_gives_the_same_account(tmp_path: Path) -> None:
    recipe = small(turns={"mean_turns": 2.0}, stream=True, task={"score_s": 0.5})
    meter, read = meter_of(recipe), meter_of(recipe)
    with HistoryWriter(tmp_path / "events.jsonl", recipe) as log:
        simulate(recipe, [log.watch, meter.watch])
    for event, decisions in History(tmp_path / "events.jsonl"):
        read.watch(event, decisions)
    assert read.result() == meter.result()


def test_a_log_without_measurements_is_read_and_counts_all_work_as_generating(tmp_path: Path) -> None:
    recipe = small(turns={"mean_turns": 3.0})
    path = tmp_path / "events.jsonl"
    meter, read = meter_of(recipe), meter_of(recipe)
    with HistoryWriter(path, recipe) as log:
        simulate(recipe, [log.watch, meter.watch])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for name in ("ahead_s", "publish_s", "instances") if line.get("input") == "Published" else ():
            line.pop(name, None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for event, decisions in History(path):
        read.watch(event, decisions)
    new, old = meter.result(), read.result()
    assert new.instances[Spent.PREFILL] > 0
    assert Spent.PREFILL not in old.instances
    work = new.instances[Spent.GENERATING] + new.instances[Spent.PREFILL]
    assert old.instances[Spent.GENERATING] == pytest.approx(work)
    assert old.wall_s == new.wall_s


def test_asking_twice_and_in_between_changes_nothing() -> None:
    recipe = small()
    asked, left = meter_of(recipe), meter_of(recipe)

    def watch(event: told.Input, decisions: list[Decision]) -> None:
        asked.watch(event, decisions)
        asked.result()

    simulate(recipe, [watch, left.watch])
    found, expected = asked.result(), left.result()
    assert found.trainer == pytest.approx(expected.trainer)
    assert sum(found.instances.values()) == pytest.approx(sum(expected.instances.values()))


# --- what each second is called -------------------------------------------------------------------


def test_slow_rewards_are_what_is_waited_for() -> None:
    quick, slow = spent(small()), spent(small(task={"score_s": 60.0}))
    assert Spent.REWARD not in quick.trainer
    assert slow.trainer[Spent.REWARD] > slow.trainer[Spent.BATCH]


def test_slow_environments_are_what_is_waited_for() -> None:
    seconds = spent(small(turns={"mean_turns": 3.0, "latency_s": 60.0}))
    assert seconds.trainer[Spent.ENVIRONMENT] > seconds.trainer[Spent.TRAINING]
    assert seconds.instances[Spent.ENVIRONMENT] > 0


def test_interrupting_everything_is_computing_again() -> None:
    assert spent(small(schedule="partial", max_staleness=3)).instances[Spent.RECOMPUTE] > 0
    assert Spent.RECOMPUTE not in spent(small(schedule="dora")).instances


def test_synchronous_training_generates_with_the_newest_version_alone() -> None:
    seconds = spent(small(schedule="sync"))
    assert set(seconds.behind) == {0}
    assert set(spent(small(schedule="dora", active_groups=24)).behind) > {0}


class Story:
    """A run told event by event: one instance unless another joins, batches of one group of one member."""

    def __init__(self) -> None:
        self.meter = SecondsMeter(batch_groups=1, group_size=1)

    def tell(self, event: told.Input, *decisions: Decision) -> None:
        self.meter.watch(event, list(decisions))

    def join(self, at: float, instance: int = 0) -> None:
        self.tell(told.InstanceJoined(at=at, instance=instance, spec=SPEC))

    def tick(self, at: float, *decisions: Decision) -> None:
        self.tell(told.Tick(at=at), *decisions)

    def start(self, at: float, trajectory: int = 0, version: int = 0, instance: int = 0) -> None:
        self.tick(
            at,
            do.Admit(group=trajectory, version=version, epoch=0, row=0),
            do.Start(instance=instance, version=version, trajectory=trajectory, group=trajectory, epoch=0,
                     row=0, member=0, attempt=0, prompt_tokens=1),
        )  # fmt: skip

    def end(self, at: float, trajectory: int = 0, instance: int = 0) -> None:
        self.tell(told.Ended(at=at, instance=instance, trajectory=trajectory, tokens=1, clock=1, kv_tokens=0))

    def take(self, at: float, trajectory: int = 0, batch: int = 0) -> None:
        take = do.Take(batch=batch, groups=(trajectory,), staleness=(0,))
        self.tell(told.Scored(at=at, trajectory=trajectory, reward=1.0), take)

    def result(self, at: float) -> SecondsSpent:
        self.tick(at)
        seconds = self.meter.result()
        check_sums(seconds)
        return seconds


def test_one_trajectory_from_the_start_to_the_end_of_a_run() -> None:
    story = Story()
    story.join(3.0)
    story.start(4.0)
    story.end(10.0)
    story.take(12.0)
    seconds = {0: InstanceSeconds(prefill_s=2.0, other_s=0.5)}
    story.tell(told.Published(at=20.0, version=1, train_s=5.0, publish_s=2.0, instances=seconds), do.Finish())
    account = story.result(21.0)
    assert (account.wall_s, account.num_instances) == (21.0, 1)
    assert account.behind == account.by_version == pytest.approx({0: 3.5})
    assert account.instances == pytest.approx(
        {
            Spent.GENERATING: 3.5,
            Spent.PREFILL: 2.0,
            Spent.TRAINER: 8.0,
            Spent.BATCH: 1.0,
            Spent.REWARD: 2.0,
            Spent.STARTING: 3.0,
            Spent.ENDING: 1.0,
            Spent.OTHER: 0.5,
        }
    )
    assert account.trainer == pytest.approx(
        {
            Spent.TRAINING: 5.0,
            Spent.PUBLISHING: 2.0,
            Spent.HANDING_OVER: 1.0,
            Spent.BATCH: 7.0,
            Spent.REWARD: 2.0,
            Spent.STARTING: 3.0,
            Spent.ENDING: 1.0,
        }
    )
    assert [(step.step, step.is_published, step.wall_s) for step in account.steps] == [
        (1, True, 20.0),
        (2, False, 1.0),
    ]


def test_what_an_instance_says_before_its_requests_are_seen_is_booked_later() -> None:
    story = Story()
    story.join(0.0)
    story.start(0.0)
    early = {0: InstanceSeconds(recompute_s=3.0)}
    story.tell(told.Published(at=1.0, version=1, train_s=0.0, instances=early))
    story.tell(told.Published(at=5.0, version=2, train_s=0.0, instances=early))
    seconds = story.result(5.0)
    assert [step.instances for step in seconds.steps] == [
        {Spent.RECOMPUTE: 1.0},
        {Spent.GENERATING: 2.0, Spent.RECOMPUTE: 2.0},
    ]


def test_an_instance_that_begins_anew_counts_from_nothing_again() -> None:
    story = Story()
    story.join(0.0)
    story.start(0.0)
    said = {0: InstanceSeconds(kv_moves_s=1.0)}
    story.tell(told.Published(at=4.0, version=1, train_s=0.0, instances=said))
    story.tell(told.InstanceLost(at=5.0, instance=0, reason="died"))
    story.join(8.0)
    story.start(8.0, trajectory=1, version=1)
    story.tell(told.Published(at=12.0, version=2, train_s=0.0, instances=said))
    seconds = story.result(12.0)
    assert seconds.instances[Spent.KV_MOVES] == pytest.approx(2.0)
    assert seconds.instances[Spent.DOWN] == pytest.approx(3.0)


def test_two_versions_share_the_time_by_their_requests() -> None:
    story = Story()
    story.join(0.0)
    story.tell(told.Published(at=0.0, version=1, train_s=0.0))
    for trajectory, version in enumerate((0, 1, 1)):
        story.start(0.0, trajectory=trajectory, version=version)
    assert story.result(9.0).behind == pytest.approx({0: 6.0, 1: 3.0})


def test_versions_with_a_pass_each_share_the_time_by_passes_too() -> None:
    story = Story()
    story.join(0.0)
    said = {0: InstanceSeconds(pass_rows=3.0)}
    story.tell(told.Published(at=0.0, version=1, train_s=0.0, instances=said))
    for trajectory, version in enumerate((0, 1, 1)):
        story.start(0.0, trajectory=trajectory, version=version)
    assert story.result(9.0).behind == pytest.approx({0: 5.0, 1: 4.0})


def test_evaluating_is_not_generating() -> None:
    story = Story()
    story.join(0.0)
    story.tick(
        0.0,
        do.Start(instance=0, version=0, trajectory=9, group=9, epoch=0, row=0, member=0, attempt=0,
                 prompt_tokens=1, evaluation=True),
    )  # fmt: skip
    assert story.result(2.0).instances == {Spent.EVALUATING: 2.0}


def test_an_instance_without_requests_waits_for_what_is_on_its_way() -> None:
    story = Story()
    story.join(0.0)
    story.join(0.0, instance=1)
    story.start(0.0)
    story.tick(1.0, do.Load(instance=1, version=1))
    story.tell(told.Loaded(at=3.0, instance=1, version=1))
    story.tick(4.0, do.Move(trajectory=0, version=0, source=0, target=1, with_kv=True))
    story.tell(told.Moved(at=6.0, trajectory=0, source=0, target=1, kv_bytes=1))
    seconds = story.result(10.0)
    assert seconds.instances == pytest.approx(
        {Spent.GENERATING: 4.0 + 4.0, Spent.WEIGHT_LOADS: 2.0, Spent.KV_MOVES: 2.0, Spent.BATCH: 2.0 + 6.0}
    )


def test_lent_devices_train_and_then_change_sides() -> None:
    story = Story()
    story.join(0.0)
    story.start(0.0)
    story.end(1.0)
    story.take(1.0)
    story.tell(told.Lent(at=1.0, instance=0))
    story.tell(told.Trained(at=4.0), do.Return(instance=0))
    story.tell(told.Returned(at=4.5, instance=0))
    story.tell(told.Published(at=5.0, version=1, train_s=3.0, publish_s=1.0))
    assert story.result(5.0).instances == pytest.approx(
        {Spent.GENERATING: 1.0, Spent.TRAINING: 3.0, Spent.SWITCHING: 0.5, Spent.TRAINER: 0.5}
    )


def test_training_on_groups_handed_over_early_is_no_wait() -> None:
    story = Story()
    story.join(0.0)
    story.start(0.0)
    story.end(6.0)
    story.take(6.0)
    story.tell(told.Published(at=8.0, version=1, train_s=6.0, ahead_s=4.0))
    assert story.result(8.0).trainer == pytest.approx({Spent.TRAINING: 6.0, Spent.BATCH: 2.0})


def test_a_lost_step_trained_nothing() -> None:
    story = Story()
    story.join(0.0)
    story.start(0.0)
    story.end(1.0)
    story.take(1.0)
    story.tell(told.StepLost(at=4.0, reason="died"), do.Take(batch=0, groups=(0,), staleness=(0,)))
    story.tell(told.Published(at=6.0, version=1, train_s=2.0))
    assert story.result(6.0).trainer == pytest.approx(
        {Spent.TRAINING: 2.0, Spent.BATCH: 1.0, Spent.OTHER: 3.0}
    )


def test_an_instance_that_joins_late_was_starting_all_the_while() -> None:
    story = Story()
    story.join(0.0)
    story.tell(told.Published(at=3.0, version=1, train_s=0.0))
    story.join(5.0, instance=1)
    seconds = story.result(6.0)
    assert [step.instances[Spent.STARTING] for step in seconds.steps] == [3.0, 2.0]


def test_the_window_waits_for_what_its_oldest_groups_lack() -> None:
    story = Story()
    story.join(0.0)
    story.start(0.0, trajectory=0)
    story.start(0.0, trajectory=1)
    story.end(1.0, trajectory=1)
    story.tell(told.Scored(at=1.0, trajectory=1, reward=1.0), do.Wait(reason="window"))
    story.end(4.0, trajectory=0)
    assert story.result(6.0).trainer == pytest.approx(
        {Spent.BATCH: 1.0, Spent.WINDOW: 3.0, Spent.REWARD: 2.0}
    )


def test_closed_groups_are_waited_for_no_longer() -> None:
    story = Story()
    story.join(0.0)
    story.start(0.0, trajectory=0)
    story.end(1.0, trajectory=0)
    story.tell(told.Scored(at=2.0, trajectory=0, reward=None), do.Close(group=0, members=(0,), outcome="x"))
    story.start(3.0, trajectory=1)
    assert story.result(5.0).trainer == pytest.approx({Spent.BATCH: 4.0, Spent.REWARD: 1.0})
