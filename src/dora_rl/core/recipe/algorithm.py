"""Every choice of an algorithm as a frozen record that checks itself.

Advantage, loss, aggregation, KL, entropy, overlong and correction are orthogonal: any advantage goes with any
loss. What has a name in the literature is a preset (`presets.py`), an AlgorithmConfig like any other.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.advantage import AdvantageConfig, AnyAdvantageConfig
from dora_rl.core.recipe.losses import AnyLossConfig, PpoConfig
from dora_rl.core.recipe.section import NonNegative, Positive, PositiveFloat, Section, check_range


class AggregationConfig(Section, frozen=True):
    """How token losses become the batch's."""

    over: Literal["token", "sequence", "constant"] = "token"
    """Mean over all tokens; mean of the trajectories' means; sum over trajectories x `length`."""
    length: Positive | None = None
    """The constant length, for `constant` only: usually the most tokens a response may have."""

    def __post_init__(self) -> None:
        if (self.over == "constant") != (self.length is not None):
            raise ConfigError(
                f"aggregation.over = {self.over} with aggregation.length = {self.length}",
                hint="a length goes with constant, and constant needs one",
            )


class KlConfig(Section, frozen=True):
    """Keep the policy near a reference."""

    coefficient: NonNegative = 0.04
    """Weight of a token's KL."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Log ratio, half its square, or `exp(-log ratio) - 1 + log ratio`."""
    into: Literal["loss", "reward"] = "loss"
    """Added to the loss, with gradient, or taken from the reward, without."""

    def __post_init__(self) -> None:
        if self.into == "loss" and self.estimator == "k1":
            raise ConfigError(
                "kl.estimator = k1 in the loss pulls nowhere: its expected gradient is zero",
                hint="set kl.estimator to k2 or k3, or kl.into to reward",
            )


class OverlongConfig(Section, frozen=True):
    """What a trajectory cut at the length cap, or near it, costs."""

    mask: bool = False
    """Leave the tokens of cut trajectories out of the loss (counted as `masked: overlong`)."""
    penalty: NonNegative = 0.0
    """Taken from the reward at the cap; less within the buffer before it."""
    buffer_share: Annotated[float, Meta(gt=0, le=1)] = 0.2
    """Share of the cap over which the penalty rises."""


class CorrectionConfig(Section, frozen=True):
    """Weigh tokens by trainer over engine, both under the weights that generated them."""

    level: Literal["token", "sequence", "geometric"] = "token"
    """Each token's ratio, the product of a trajectory's, or its geometric mean."""
    treatment: Literal["truncated", "masked"] = "truncated"
    """What happens to a weight out of bounds: it becomes the bound, or zero."""
    low: NonNegative = 0.0
    high: PositiveFloat = 2.0

    def __post_init__(self) -> None:
        check_range("correction", self.low, self.high)


class AlgorithmConfig(Section, frozen=True):
    """All of it."""

    advantage: AnyAdvantageConfig = field(default_factory=AdvantageConfig)
    loss: AnyLossConfig = field(default_factory=PpoConfig)
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    kl: KlConfig | None = None
    """Left out, there is no reference model."""
    entropy_bonus: NonNegative = 0.0
    """Weight of a token's entropy, taken from the loss."""
    overlong: OverlongConfig = field(default_factory=OverlongConfig)
    correction: CorrectionConfig | None = None
    """Left out, what the engine recorded is taken as it is."""
