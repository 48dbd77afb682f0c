"""Where the seconds went, in words and as a picture: shares that add up, and what to do about them."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dora_rl.costs.seconds_meter import SecondsMeter
from dora_rl.costs.seconds_spent import SecondsSpent, Spent, StepSeconds
from dora_rl.observe.pictures.look import save
from dora_rl.observe.pictures.seconds_picture import draw_seconds
from dora_rl.observe.result_words import bottleneck
from dora_rl.observe.seconds_words import WORDS, seconds_headline, seconds_lines
from dora_rl.sim.simulated_run import simulate
from dora_rl.sim.simulation_setup import complete, resolve

ASKED = (
    "batch.groups=4",
    "group_size=4",
    "gpus=4",
    "rollout_gpus=2",
    "tensor_parallel=1",
    "rows=20",
    "steps=3",
)


def account(num_steps: int, **trainer: float) -> SecondsSpent:
    """A run of one instance and steps of ten seconds, of which the trainer spent these so."""
    seconds = {Spent(name): amount for name, amount in trainer.items()}
    step = StepSeconds(
        step=1,
        is_published=True,
        wall_s=10.0,
        instances={Spent.GENERATING: 9.0, Spent.WINDOW: 1.0},
        behind={0: 6.0, 5: 1.0, 7: 2.0},
        trainer={**seconds, Spent.TRAINING: 10.0 - sum(seconds.values())},
    )
    steps = [replace(step, step=number + 1) for number in range(num_steps)]
    return SecondsSpent.of(steps, num_instances=1, by_version={0: 9.0 * num_steps})


def test_every_category_has_a_word() -> None:
    assert set(WORDS) == set(Spent)


def test_shares_are_told_the_greatest_first_and_small_ones_together() -> None:
    said = dict(seconds_lines(account(2, batch=3.0, publishing=0.05)))
    by_version = "60% newest version, 10% 5 behind, 20% 7 behind"
    assert said["instances"] == f"90% generating ({by_version}), 10% waiting for the window"
    assert said["trainer"] == "70% training, 30% waiting for a batch, 0.5% else"


def test_a_run_that_has_not_begun_says_nothing() -> None:
    assert list(seconds_lines(SecondsSpent.of([], num_instances=0, by_version={}))) == []


def test_the_headline_names_the_greatest_loss_of_the_trainer() -> None:
    assert seconds_headline(account(1, batch=1.0, reward=4.0)).endswith(
        "trains 50% and spends 40% waiting for rewards"
    )
    assert seconds_headline(account(1, starting=5.0, handing_over=1.0)).endswith(
        "and spends 10% handing over"
    )
    assert seconds_headline(account(1)).endswith("the trainer trains 100%")


@pytest.mark.parametrize("num_steps", [1, 2, 61, 260])
def test_a_picture_of_any_number_of_steps_is_drawn(num_steps: int, tmp_path: Path) -> None:
    fig = draw_seconds(account(num_steps, batch=3.0, environment=1.0))
    above, below = fig.axes
    assert len(above.containers) == 3
    assert len(below.containers) == 3
    heights = [sum(layer[0].get_height() for layer in axes.containers) for axes in fig.axes]
    assert heights == pytest.approx([10.0, 10.0]), "a bar is as high as the step took"
    assert save(fig, tmp_path / "seconds.png").stat().st_size > 10_000


def test_a_tall_bar_is_cut_and_labelled() -> None:
    first, *others = account(9).steps
    first = replace(first, wall_s=400.0, trainer={Spent.STARTING: 400.0})
    fig = draw_seconds(SecondsSpent.of([first, *others], num_instances=1, by_version={}))
    assert fig.axes[1].get_ylim()[1] < 30
    assert [text.get_text() for text in fig.axes[1].texts] == ["400 s"]


@pytest.mark.parametrize(
    ("wait", "who"), [("reward", "rewards"), ("environment", "environments"), ("prompts", "prompts")]
)
def test_the_bottleneck_is_what_the_trainer_waits_for_longest(wait: str, who: str) -> None:
    recipe = complete(resolve(assignments=ASKED))
    meter = SecondsMeter(batch_groups=recipe.batch.groups, group_size=recipe.batch.group_size)
    result = replace(simulate(recipe, [meter.watch]), max_staleness=3, trainer_idle_fraction=0.4)
    waiting = bottleneck(result, seconds=account(1, batch=1.0, **{wait: 3.0}))
    assert waiting.startswith(f"{who}: the trainer waits 30% of the time")
    assert bottleneck(result, seconds=account(1, batch=3.0, **{wait: 1.0})) == bottleneck(result)
