"""Records and presets."""

import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.algorithm import (
    AdvantageConfig,
    AggregationConfig,
    AlgorithmConfig,
    CorrectionConfig,
    GaeConfig,
    KlConfig,
)
from dora_rl.core.recipe.loss_configs import CispoConfig, Kimi15Config
from dora_rl.core.recipe.presets import PRESETS, preset
from dora_rl.core.struct_loader import build, override, to_dict

NAMES = [
    "grpo",
    "dr_grpo",
    "dapo",
    "bnpo",
    "rloo",
    "reinforce++",
    "gspo",
    "cispo",
    "tis",
    "topr",
    "decoupled_ppo",
    "ppo",
    "kimi15",
]


def test_every_name_of_the_field_is_a_preset() -> None:
    assert list(PRESETS) == NAMES
    assert len({msgspec.json.encode(config) for config in PRESETS.values()}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_presets_survive_a_recipe(name: str) -> None:
    config = preset(name)
    assert build(AlgorithmConfig, to_dict(config), "recipe") == config
    assert msgspec.json.decode(msgspec.json.encode(config), type=AlgorithmConfig) == config


def test_a_recipe_can_change_one_choice() -> None:
    tree = override({}, ["loss.kind=kimi15", "loss.tau=0.5", "kl.coefficient=0.1"], AlgorithmConfig)
    config = build(AlgorithmConfig, tree, "recipe")
    assert config.loss == Kimi15Config(tau=0.5)
    assert config.kl == KlConfig(coefficient=0.1)


@pytest.mark.parametrize(
    ("name", "near"), [("grppo", "grpo"), ("reinforce", "reinforce++"), ("dapo2", "dapo")]
)
def test_an_unknown_name_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        preset(name)
    assert caught.value.hint == f"did you mean '{near}'?"


def test_a_name_near_nothing_lists_them_all() -> None:
    with pytest.raises(ConfigError) as caught:
        preset("xyzzy")
    assert all(name in str(caught.value.hint) for name in NAMES)


def test_only_batch_statistics_need_the_whole_batch() -> None:
    whole = {name for name, config in PRESETS.items() if config.advantage.needs_whole_batch}
    assert whole == {"reinforce++", "ppo"}
    for name, config in PRESETS.items():
        assert (config.advantage.whole_batch_reason is not None) == (name in whole)
    assert not GaeConfig(normalise=False).needs_whole_batch


def test_only_ppo_needs_a_critic_and_only_decoupled_ppo_a_proximal_policy() -> None:
    assert [name for name in NAMES if PRESETS[name].advantage.needs_critic] == ["ppo"]
    assert [name for name in NAMES if PRESETS[name].loss.needs_proximal] == ["decoupled_ppo"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: AdvantageConfig(baseline="none", scale="group"),
        lambda: AdvantageConfig(baseline="batch", scale="group"),
        lambda: AdvantageConfig(baseline="none", scale="batch"),
        lambda: AggregationConfig(over="token", length=3),
        lambda: KlConfig(estimator="k1", into="loss"),
        lambda: CispoConfig(weight_low=2.0, weight_high=1.0),
        lambda: CorrectionConfig(low=2.0, high=1.0),
    ],
)
def test_choices_that_do_not_go_together_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        wrong()
    assert caught.value.hint


def test_configuration_does_not_import_torch() -> None:
    code = "import sys, dora_rl.core.recipe.presets; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
