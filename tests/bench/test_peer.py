"""What is asked of TRL is what our run was, and what is missing is said in one sentence."""

import importlib.util
from collections.abc import Callable

import msgspec
import pytest

from dora_rl.bench.peer import peer_comparison as peers
from dora_rl.bench.peer.calculators import SlowCalculator
from dora_rl.bench.peer.environment_comparison import EnvironmentComparison, EnvironmentRun
from dora_rl.bench.peer.trl import arguments
from dora_rl.cli.bench_peer import _environments
from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.run.run_setup import DeviceLayout, RunSetup


def test_batch_and_optimizer_are_ours(make_setup: Callable[..., RunSetup]) -> None:
    setup = make_setup()
    asked = arguments(setup, 7, "out")
    assert asked["max_steps"] == 7
    assert asked["per_device_train_batch_size"] == setup.recipe.batch.groups * setup.recipe.batch.group_size
    assert asked["num_generations"] == setup.recipe.batch.group_size
    assert asked["learning_rate"] == setup.trainer.optimizer.learning_rate
    assert asked["max_completion_length"] == setup.max_new_tokens


def test_of_episodes_a_turn_and_all_turns_are_limited_as_ours(make_setup: Callable[..., RunSetup]) -> None:
    episode = EpisodeSettings(function="environment", max_turns=7, max_context_tokens=512)
    setup = make_setup(episode=episode, rewards=())
    asked = arguments(setup, 7, "out")
    assert asked["max_completion_length"] == 512
    assert asked["generation_kwargs"] == {"max_new_tokens": setup.max_new_tokens}
    assert asked["max_tool_calling_iterations"] == 6


def test_the_same_call_of_a_slow_calculator_takes_as_long_for_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("dora_rl.bench.peer.calculators.time.sleep", slept.append)
    for _ in range(2):
        slow = SlowCalculator()
        slow.reset(solution="12", prompt="3*4")
        assert slow.mul(3, 4) == 12
        assert slow.get_reward() == 1.0
        assert slow.sub(12, 1) == 11
        assert slow.get_reward() == 0.0
    assert slept[:2] == slept[2:]
    assert all(0.1 <= seconds <= 2.0 for seconds in slept)


def test_what_it_has_no_words_for_is_refused(make_setup: Callable[..., RunSetup]) -> None:
    setup = msgspec.structs.replace(make_setup(), devices=DeviceLayout(trainer_device="cuda:0"))
    with pytest.raises(ConfigError, match="for CPUs"):
        arguments(setup, 7, "out")


def test_without_trl_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "NEEDED", ("no_such_package_at_all",))
    with pytest.raises(UserError, match="no_such_package_at_all") as raised:
        peers.require_peer()
    assert raised.value.hint == "pip install trl accelerate datasets"
    assert importlib.util.find_spec("no_such_package_at_all") is None


def test_a_reward_is_reached_when_the_mean_of_three_steps_is() -> None:
    rewards = [0.0, 0.9, 0.3, 0.6, 0.9, 0.9]
    assert peers.reached_s([1, 2, 3, 4, 5, 6], rewards, 0.6) == 4
    assert peers.reached_s([1, 2, 3, 4, 5, 6], rewards, 0.95) is None


def test_beside_each_speed_stands_what_an_episode_was_and_how_old_it_was() -> None:
    def run(name: str, speed: float, tokens: float, staleness: float | None) -> EnvironmentRun:
        return EnvironmentRun(
            name=name,
            tools="0 s",
            episodes_per_s=speed,
            tokens_mean=tokens,
            threads="2",
            staleness_mean=staleness,
            rewards=(0.1, 0.2),
        )

    played = EnvironmentComparison(title="t", runs=(run("dora", 9.0, 61, 1.25), run("TRL 1", 3.0, 62, None)))
    columns = [list(column.cells) for column in _environments(played).columns]
    assert ["3.00", "1.00"] in columns
    assert ["61", "62"] in columns
    assert ["1.25", "-"] in columns
