"""Algorithms that have a name.

A preset says what its paper says where the paper gives a number; every field can be set otherwise. What is
the run's, the length cap, they leave out.
"""

from difflib import get_close_matches

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.algorithm import (
    AdvantageConfig,
    AggregationConfig,
    AlgorithmConfig,
    GaeConfig,
    OverlongConfig,
)
from dora_rl.core.recipe.loss_configs import (
    CispoConfig,
    DecoupledPpoConfig,
    GspoConfig,
    Kimi15Config,
    PpoConfig,
    TisConfig,
    ToprConfig,
)

_GROUP_STANDARDISED = AdvantageConfig(baseline="group", scale="group")
_GROUP_CENTRED = AdvantageConfig(baseline="group", scale="none")
_TOKEN = AggregationConfig(over="token")
_SEQUENCE = AggregationConfig(over="sequence")

PRESETS: dict[str, AlgorithmConfig] = {
    "grpo": AlgorithmConfig(advantage=_GROUP_STANDARDISED, loss=PpoConfig(), aggregation=_SEQUENCE),
    "dr_grpo": AlgorithmConfig(
        advantage=_GROUP_CENTRED,
        loss=PpoConfig(),
        aggregation=AggregationConfig(over="constant"),
    ),
    "dapo": AlgorithmConfig(
        advantage=_GROUP_STANDARDISED,
        loss=PpoConfig(clip_low=0.2, clip_high=0.28),
        aggregation=_TOKEN,
        overlong=OverlongConfig(penalty=1.0, buffer_share=0.2),
    ),
    "bnpo": AlgorithmConfig(advantage=_GROUP_STANDARDISED, loss=PpoConfig(), aggregation=_TOKEN),
    "rloo": AlgorithmConfig(
        advantage=AdvantageConfig(baseline="leave_one_out", scale="none"),
        loss=PpoConfig(),
        aggregation=_TOKEN,
    ),
    "reinforce++": AlgorithmConfig(
        advantage=AdvantageConfig(baseline="batch", scale="batch"), loss=PpoConfig(), aggregation=_TOKEN
    ),
    "gspo": AlgorithmConfig(advantage=_GROUP_STANDARDISED, loss=GspoConfig(), aggregation=_SEQUENCE),
    "cispo": AlgorithmConfig(advantage=_GROUP_STANDARDISED, loss=CispoConfig(), aggregation=_TOKEN),
    "tis": AlgorithmConfig(advantage=_GROUP_STANDARDISED, loss=TisConfig(), aggregation=_TOKEN),
    "topr": AlgorithmConfig(advantage=_GROUP_CENTRED, loss=ToprConfig(), aggregation=_TOKEN),
    "decoupled_ppo": AlgorithmConfig(
        advantage=_GROUP_STANDARDISED, loss=DecoupledPpoConfig(), aggregation=_TOKEN
    ),
    "ppo": AlgorithmConfig(advantage=GaeConfig(), loss=PpoConfig(dual_clip=3.0), aggregation=_TOKEN),
    "kimi15": AlgorithmConfig(advantage=_GROUP_CENTRED, loss=Kimi15Config(), aggregation=_TOKEN),
}


def preset(name: str) -> AlgorithmConfig:
    """The algorithm of a preset's name; a ConfigError if there is no such preset."""
    if name in PRESETS:
        return PRESETS[name]
    near = get_close_matches(name, PRESETS, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"one of: {', '.join(PRESETS)}"
    raise ConfigError(f"unknown algorithm '{name}'", hint=hint)
