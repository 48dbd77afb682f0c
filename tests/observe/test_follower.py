"""A follower knows from inputs and decisions alone what the simulator knows from the inside."""

from collections.abc import Sequence
from io import StringIO
from statistics import fmean

import pytest
from msgspec.structs import replace
from rich.console import Console

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input, QueuedPrompt
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.struct_loader import build
from dora_rl.observe.live.dead_run_warnings import Warner, dead_run_warnings, num_compared
from dora_rl.observe.live.event_facts import FailureFacts, FaultFacts, StepFacts
from dora_rl.observe.live.follower import Follower
from dora_rl.observe.live.screen import curve
from dora_rl.observe.live.step_words import by_version, duration, left_s, step_line, tokens_per_s
from dora_rl.observe.live.view import RunView
from dora_rl.sim.simulated_run import Result, simulate

RECIPE = build(
    Recipe,
    {
        "steps": 6,
        "batch": {"groups": 8, "group_size": 4},
        "cluster": {"gpus": 12, "rollout_gpus": 4, "tensor_parallel": 1, "slots": 16},
        "task": {"rows": 100},
        "simulation": {"warmup_steps": 0},
    },
    "test",
)


def followed() -> tuple[Follower, Result]:
    follower = Follower()
    return follower, simulate(RECIPE, [follower.watch])


USUAL = StepFacts(
    step=1, published_at=10.0, step_s=10.0, train_s=4.0, starved_s=3.0, window_s=0.0, generated_tokens=1000,
    reward=0.5, reward_std=0.1, zero_variance_share=0.0, mean_tokens=20.0, max_tokens=40, truncated_share=0.0,
    staleness_mean=1.0, staleness_max=2, num_trajectories=32,
)  # fmt: skip


def step(number: int, **changes: float | None) -> StepFacts:
    """The first has number 0 and is step 1."""
    return replace(USUAL, step=number + 1, **changes)


def test_the_steps_of_a_simulated_run_are_those_of_its_result() -> None:
    follower, result = followed()
    steps = follower.steps
    assert [facts.step for facts in steps] == list(range(1, 7))
    assert all(facts.num_trajectories == 32 for facts in steps)
    assert max(facts.staleness_max for facts in steps) == result.staleness_max
    assert fmean(facts.staleness_mean for facts in steps) == pytest.approx(result.staleness_mean)
    assert sum(facts.starved_s for facts in steps) == pytest.approx(result.starved_s)
    assert sum(facts.window_s for facts in steps) == pytest.approx(result.window_stall_s)
    assert all(facts.step_s - facts.train_s >= 0 for facts in steps)


def test_at_the_end_nothing_is_active_and_the_trainer_is_done() -> None:
    follower, _ = followed()
    assert follower.is_over
    assert follower.state.trainer == "done"
    assert follower.state.active_by_version == {}


class Story:
    """A run told by hand."""

    def __init__(self) -> None:
        self.follower = Follower()
        self.tell(told.InstanceJoined(at=0.0, instance=0, spec=InstanceSpec(slots=8, kv_tokens=100)), [])

    def tell(self, event: Input, decisions: Sequence[Decision] = ()) -> None:
        self.follower.watch(event, list(decisions))

    def group(self, number: int, rewards: Sequence[float | None], *, at: float, version: int = 0) -> None:
        first = 10 * number
        starts = [
            do.Start(instance=0, version=version, trajectory=first + i, group=number, epoch=0, row=number,
                     member=i, attempt=0, prompt_tokens=5)
            for i in range(len(rewards))
        ]  # fmt: skip
        self.tell(told.Tick(at=at), [do.Admit(group=number, version=version, epoch=0, row=number), *starts])
        for i, reward in enumerate(rewards):
            ended = told.Ended(at=at + 1, instance=0, trajectory=first + i, tokens=10, clock=0.0, kv_tokens=0,
                               truncated=i == 0)  # fmt: skip
            self.tell(ended)
            self.tell(told.Scored(at=at + 1, trajectory=first + i, reward=reward))


def test_rewards_variance_and_waits_belong_to_the_step_that_took_them() -> None:
    story = Story()
    story.tell(told.Tick(at=0.0), [do.Wait(reason="starved")])
    story.group(0, [1.0, 0.0], at=0.0)
    story.group(1, [0.5, 0.5], at=1.0)
    story.group(2, [None, None], at=1.0)
    assert story.follower.state.active_by_version == {0: 3}
    story.tell(told.Tick(at=4.0), [do.Take(batch=0, groups=(0, 1), staleness=(0, 0))])
    assert story.follower.state.trainer == "trains step 1"
    story.tell(told.Published(at=6.0, version=1, train_s=2.0))
    (facts,) = story.follower.steps
    assert (facts.reward, facts.reward_std, facts.zero_variance_share) == (0.5, 0.25, 0.5)
    assert (facts.starved_s, facts.window_s, facts.step_s, facts.generated_tokens) == (4.0, 0.0, 6.0, 60)
    assert facts.truncated_share == 0.5
    assert story.follower.state.active_by_version == {0: 1}


def test_a_lost_step_gives_its_groups_back_and_counts_once() -> None:
    story = Story()
    story.group(0, [1.0, 0.0], at=0.0)
    take = do.Take(batch=0, groups=(0,), staleness=(0,))
    story.tell(told.Tick(at=3.0), [take])
    story.tell(told.StepLost(at=4.0, reason="gone"))
    assert story.follower.state.active_by_version == {0: 1}
    story.tell(told.Tick(at=5.0), [take])
    story.tell(told.Published(at=6.0, version=1, train_s=1.0))
    assert [facts.reward for facts in story.follower.steps] == [0.5]


def test_closed_trajectories_are_counted_and_their_group_is_no_longer_active() -> None:
    story = Story()
    story.group(0, [1.0, 1.0], at=0.0)
    closed = do.Close(group=0, members=(0, 1), outcome="filtered: zero variance")
    story.tell(told.Tick(at=3.0), [closed])
    assert story.follower.state.outcomes == {"filtered: zero variance": 2}
    assert story.follower.state.active_by_version == {}


def test_held_out_rows_are_evaluations_and_no_step_of_training() -> None:
    story = Story()
    start = do.Start(instance=0, version=3, trajectory=7, group=9, epoch=0, row=0, member=0, attempt=0,
                     prompt_tokens=5, evaluation=True)  # fmt: skip
    story.tell(told.Published(at=0.0, version=3, train_s=1.0))
    story.tell(told.EvaluationAsked(at=0.0, prompts=(QueuedPrompt(epoch=0, row=0, tokens=5),)), [start])
    assert story.follower.evaluated == []
    story.tell(told.Scored(at=1.0, trajectory=7, reward=0.75))
    assert story.follower.evaluated == story.follower.evaluations
    (evaluation,) = story.follower.evaluations
    assert (evaluation.version, evaluation.num_scored, evaluation.reward) == (3, 1, 0.75)
    assert story.follower.steps == []


def failed(trajectory: int, function: str = "f", reason: str = "raised") -> told.Scored:
    fault = told.RewardFault(function=function, reason=reason, detail=f"KeyError: [{trajectory}]")
    return told.Scored(at=1.0, trajectory=trajectory, reward=None, failures=(fault,))


DEATH = told.Fault(at=2.0, worker="instance 0", reason="killed by SIGKILL")


def test_failed_rewards_deaths_and_replays_are_counted_by_name() -> None:
    story = Story()
    for event in (failed(0), failed(1), failed(2, "g", "time limit"), DEATH, DEATH):
        story.tell(event)
    story.tell(told.Replayed(at=3.0, batch=0, num_different=0))
    story.tell(told.Replayed(at=3.0, batch=1, num_different=7))
    state = story.follower.state
    assert [(each.name, each.count, each.example) for each in state.failures] == [
        ("reward f, raised", 2, "KeyError: [0]"),
        ("reward g, time limit", 1, "KeyError: [2]"),
    ]
    assert state.faults == [FaultFacts(worker="instance 0", count=2, last_reason="killed by SIGKILL")]
    assert (state.num_replays, state.num_different) == (2, 7)


def test_what_fails_is_told_at_once_and_often_repeated_less_and_less() -> None:
    lines: list[str] = []
    view = RunView("run", 6, lines.append, rewards_log="here/rewards.log")
    view.recall([(failed(0, "earlier"), [])])
    for trajectory in range(150):
        view.watch(failed(trajectory), [])
    assert lines == [
        "reward f, raised: KeyError: [0] (the first time; see here/rewards.log)",
        "reward f, raised: KeyError: [9] (10 so far; see here/rewards.log)",
        "reward f, raised: KeyError: [99] (100 so far; see here/rewards.log)",
    ]
    lines.clear()
    view.watch(DEATH, [])
    view.watch(replace(DEATH, is_restarted=False), [])
    view.watch(told.Replayed(at=3.0, batch=1, num_different=0), [])
    view.watch(told.Replayed(at=3.0, batch=2, num_different=1200), [])
    assert lines == [
        "instance 0: killed by SIGKILL; started again, 1 time so far",
        "instance 0: killed by SIGKILL; gave up after 2 times",
        "step 3 was trained again after a restart: 1,200 values differ from those that were published",
    ]


def test_rewards_that_fail_are_not_said_not_to_apply() -> None:
    facts = FailureFacts(function="f", reason="raised", count=30, example="KeyError: 1")
    warnings = dead_run_warnings([step(i, reward=None) for i in range(4)], {}, [facts], num_compared=4)
    assert not any("applied" in warning for warning in warnings)
    assert any("reward functions failed" in warning for warning in warnings)
    assert any("reward f, raised: 30 trajectories" in each and "KeyError: 1" in each for each in warnings)


@pytest.mark.parametrize(
    ("steps", "outcomes", "words"),
    [
        ([step(i, zero_variance_share=1.0) for i in range(4)], {}, "all equal"),
        ([step(i, zero_variance_share=0.9) for i in range(4)], {}, "teach nothing"),
        ([step(i, truncated_share=1.0) for i in range(4)], {}, "cut at the length limit"),
        ([step(i, reward=0.3 + 0.01 * (i % 2)) for i in range(20)], {}, "flat"),
        ([step(i, reward=0.5 - 0.02 * i) for i in range(20)], {}, "fell"),
        ([step(i, reward=None) for i in range(4)], {}, "no reward function applied"),
        ([step(0)], {"failed: environment, 3 tries": 30}, "failed: environment"),
    ],
)
def test_a_dead_run_is_told_from_a_living_one(
    steps: list[StepFacts], outcomes: dict[str, int], words: str
) -> None:
    assert any(words in warning for warning in dead_run_warnings(steps, outcomes, num_compared=4))


def test_a_rising_reward_is_no_reason_to_worry() -> None:
    assert dead_run_warnings([step(i, reward=0.1 + 0.02 * i) for i in range(20)], {}, num_compared=4) == []
    assert dead_run_warnings([], {}, num_compared=4) == []


def test_words_say_figures_with_their_units() -> None:
    assert (duration(8.42), duration(200), duration(7500)) == ("8.4 s", "3 min 20 s", "2 h 5 min")
    assert left_s([step(0), step(1)], 10) == 80.0
    assert left_s([step(9)], 10) is None
    assert by_version({1: 2, 3: 4}) == "v3 x 4, v1 x 2"
    line = step_line([step(each) for each in range(5)], num_steps=10)
    for part in ("step 5/10", "reward 0.500", "100 tokens/s", "staleness 1.00 (max 2)", "50.0 s left"):
        assert part in line


def test_rates_are_of_the_latest_steps_and_not_of_the_start() -> None:
    bursts = [step(0, step_s=100.0), *(step(i, step_s=9.0 if i % 2 else 1.0) for i in range(1, 9))]
    uneven = [replace(each, generated_tokens=0) if each.step % 2 == 0 else each for each in bursts]
    assert left_s(bursts, 19) == pytest.approx(50.0)
    assert left_s(bursts[:1], 19) is None
    assert tokens_per_s(uneven) == pytest.approx(uneven[0].generated_tokens / 10)


def test_a_curve_goes_from_the_least_to_the_greatest_within_its_width() -> None:
    assert curve([0.0, 0.5, 1.0]) == "▁▅█"
    assert len(curve([float(i) for i in range(1000)], width=60)) <= 60
    assert curve([]) == ""


def test_the_screen_shows_steps_groups_by_version_and_who_waits() -> None:
    view = RunView("tiny, demo", 6, None)
    simulate(RECIPE, [view.watch])
    console = Console(file=StringIO(), width=140, force_terminal=False)
    console.print(view)
    screen = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("tiny, demo", "6/6", "staleness", "tokens/s", "active groups", "instance 3", "trainer done"):
        assert word in screen, word


def test_the_screen_shows_warnings_deaths_and_failures() -> None:
    view = RunView("tiny, demo", 6, None, num_compared=2)
    view.watch(told.InstanceJoined(at=0.0, instance=0, spec=InstanceSpec(slots=8, kv_tokens=100)), [])
    for number in range(3):
        for event, decisions in flat_step(number):
            view.watch(event, decisions)
    view.watch(failed(7), [])
    view.watch(DEATH, [])
    console = Console(file=StringIO(), width=200, force_terminal=False)
    console.print(view)
    screen = console.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "warning: in the last 3 steps",
        "KeyError: [7] (the first",
        "instance 0: killed by SIGKILL",
    ):
        assert words in screen, words


def flat_step(number: int) -> list[tuple[Input, list[Decision]]]:
    """A step of one group whose two rewards are equal."""
    starts: list[Decision] = [
        do.Start(instance=0, version=0, trajectory=2 * number + i, group=number, epoch=0, row=0, member=i,
                 attempt=0, prompt_tokens=5)
        for i in range(2)
    ]  # fmt: skip
    admit = do.Admit(group=number, version=0, epoch=0, row=0)
    take = do.Take(batch=number, groups=(number,), staleness=(0,))
    return [
        (told.Tick(at=number), [admit, *starts]),
        *((told.Scored(at=number, trajectory=2 * number + i, reward=1.0), []) for i in range(2)),
        (told.Tick(at=number), [take]),
        (told.Published(at=number + 1.0, version=number + 1, train_s=1.0), []),
    ]


def test_where_nobody_watches_every_step_is_told_once_and_the_past_not_at_all() -> None:
    told_lines: list[str] = []
    view = RunView("run", 6, told_lines.append)
    events: list[tuple[Input, list[Decision]]] = []
    simulate(RECIPE, [lambda event, decisions: events.append((event, decisions))])
    half = next(i for i, (e, _) in enumerate(events) if isinstance(e, told.Published) and e.version == 3)
    view.recall(events[: half + 1])
    for event, decisions in events[half + 1 :]:
        view.watch(event, decisions)
    steps = [line.split()[1] for line in told_lines if line.startswith("step ")]
    assert steps == ["4/6", "5/6", "6/6"]


def evaluation(version: int, rewards: Sequence[float | None]) -> list[tuple[Input, list[Decision]]]:
    """A version is published and evaluated; a row without a reward is closed."""
    keys = [1000 * version + i for i in range(len(rewards))]
    starts: list[Decision] = [
        do.Start(instance=0, version=version, trajectory=key, group=key, epoch=0, row=0, member=0, attempt=0,
                 prompt_tokens=5, evaluation=True)
        for key in keys
    ]  # fmt: skip
    ends: list[tuple[Input, list[Decision]]] = [
        (told.Tick(at=2.0), [do.Close(group=key, members=(key,), outcome="failed: x")])
        if reward is None
        else (told.Scored(at=2.0, trajectory=key, reward=reward), [])
        for key, reward in zip(keys, rewards, strict=True)
    ]
    asked: Input = told.EvaluationAsked(
        at=1.0, prompts=tuple(QueuedPrompt(epoch=0, row=row, tokens=5) for row in range(len(rewards)))
    )
    return [(told.Published(at=1.0, version=version, train_s=1.0), []), (asked, starts), *ends]


def test_an_evaluation_is_told_once_and_when_all_its_rows_are_scored() -> None:
    lines: list[str] = []
    view = RunView("run", 6, lines.append)
    view.watch(told.InstanceJoined(at=0.0, instance=0, spec=InstanceSpec(slots=8, kv_tokens=100)), [])
    view.recall(evaluation(0, [1.0]))
    *most, last = evaluation(2, [1.0, None, 0.5])
    for event, decisions in most:
        view.watch(event, decisions)
    assert lines == []
    view.watch(*last)
    view.watch(told.Tick(at=3.0), [])
    assert lines == ["held out: 0.750 after step 2, over 2 rows"]


def test_equal_rewards_are_a_warning_only_where_they_are_compared_in_groups() -> None:
    equal = [step(i, zero_variance_share=1.0) for i in range(4)]
    assert dead_run_warnings(equal, {}, num_compared=None) == []
    (alone,) = dead_run_warnings(equal, {}, num_compared=1)
    assert "one member" in alone
    assert "all equal" not in alone


@pytest.mark.parametrize(
    ("preset", "expected"), [("grpo", 4), ("rloo", 4), ("reinforce++", None), ("ppo", None)]
)
def test_what_an_algorithm_compares_is_known_from_the_recipe(preset: str, expected: int | None) -> None:
    assert num_compared(resolve_recipe("demo", ["batch.group_size=4", f"preset={preset}"])) == expected


def test_a_warning_that_no_longer_holds_is_remembered_with_its_step() -> None:
    follower, warner = Follower(), Warner(4)
    for number in range(6):
        follower.steps.append(step(number, zero_variance_share=0.9 if number < 3 else 0.0))
        assert len(warner.new(follower)) == (number == 2)
    (given,) = warner.all(follower)
    assert (given.step, given.now) == (3, None)
    assert given.text.startswith("90% of the groups of the last 3 steps")
    follower.steps += [step(number, zero_variance_share=0.95) for number in range(6, 11)]
    (again,) = warner.all(follower)
    assert (again.step, again.text) == (given.step, given.text)
    assert again.now is not None
    assert again.now.startswith("95% of the groups of the last 5 steps")


def test_a_line_leaves_out_what_rounds_to_nothing() -> None:
    assert "2% cut" in step_line([step(0, truncated_share=0.02)], num_steps=10)
    few = step_line([step(0, truncated_share=0.004, zero_variance_share=0.004)], num_steps=10)
    assert "cut" not in few
    assert "variance" not in few
    alike = [step(0, zero_variance_share=1.0)]
    assert "100% of groups without variance" in step_line(alike, num_steps=10)
    assert "variance" not in step_line(alike, num_steps=10, compares_groups=False)
