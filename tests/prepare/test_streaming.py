"""Streaming is refused where the trainer could only wait for the whole batch."""

from pathlib import Path

import pytest

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.prepare.function_checks import check_functions

OWN = """
def loss(logprobs, proximal_logprobs, advantages):
    return -(logprobs - proximal_logprobs).exp() * advantages

def advantage(rewards, batch_rewards):
    return rewards - batch_rewards.mean()
"""


def checked(*assignments: str) -> None:
    check_functions(resolve_recipe(None, assignments), [], lambda doing: None, {})


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        (["algorithm.preset=reinforce++"], "= batch"),
        (["algorithm.preset=ppo"], r"advantage\.normalise = true"),
        (["algorithm.preset=decoupled_ppo", "batch.updates=2"], "before the first of several updates"),
        (["algorithm.loss=OWN:loss", "batch.updates=2"], "before the first of several updates"),
        (["algorithm.advantage=OWN:advantage"], "batch_rewards"),
    ],
)
def test_what_needs_the_whole_batch_is_not_streamed(
    tmp_path: Path, assignments: list[str], reason: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    given = [each.replace("OWN", f"{tmp_path}/own.py") for each in assignments]
    with pytest.raises(ConfigError, match=reason) as error:
        checked(*given, "control.stream=true")
    assert error.value.hint == "set control.stream=false"
    checked(*given, "control.stream=false")


def test_what_needs_a_group_alone_is_streamed() -> None:
    checked("algorithm.preset=grpo", "control.stream=true")
    checked("algorithm.preset=decoupled_ppo", "control.stream=true", "batch.updates=1")
