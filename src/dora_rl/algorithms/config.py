"""Every choice of an algorithm as a frozen record that checks itself. Torch-free.

Advantage, loss, aggregation, KL, entropy, overlong and correction are orthogonal: any advantage goes with any
loss. What has a name in the literature is a preset (`presets.py`), an AlgorithmConfig like any other.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from dora_rl.core.errors import ConfigError

NonNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
AboveOne = Annotated[float, Meta(gt=1)]
PositiveInt = Annotated[int, Meta(ge=1)]


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One choice."""


class AdvantageConfig(Part, frozen=True, tag_field="kind", tag="outcome"):
    """Every token of a trajectory gets one advantage: its reward, less a baseline, over a scale."""

    baseline: Literal["group", "leave_one_out", "batch", "none"] = "group"
    """What is subtracted: the mean of the group, of the group's other members, of the batch, or nothing."""
    scale: Literal["group", "batch", "none"] = "group"
    """What is divided by: the standard deviation (ddof 1) in the group, or of all the batch's deviations."""
    epsilon: Positive = 1e-6
    """Added to the standard deviation."""

    def __post_init__(self) -> None:
        allowed = {
            "none": ("group", "leave_one_out", "batch", "none"),
            "group": ("leave_one_out", "group"),
            "batch": ("group", "leave_one_out", "batch"),
        }
        if self.baseline not in allowed[self.scale]:
            raise ConfigError(
                f"advantage.scale = {self.scale} does not go with advantage.baseline = {self.baseline}: "
                "equal rewards would be divided by nothing",
                hint=f"set advantage.scale to none, or advantage.baseline to {allowed[self.scale][-1]}",
            )

    @property
    def needs_critic(self) -> bool:
        return False

    @property
    def whole_batch_reason(self) -> str | None:
        """Why no advantage is known before the batch is complete; None where a group is enough."""
        choices = {"baseline": self.baseline, "scale": self.scale}
        names = [f"advantage.{name}" for name, over in choices.items() if over == "batch"]
        if not names:
            return None
        return f"{' and '.join(names)} = batch: no advantage is known before the batch is complete"

    @property
    def needs_whole_batch(self) -> bool:
        return self.whole_batch_reason is not None


class GaeConfig(Part, frozen=True, tag_field="kind", tag="gae"):
    """Every token gets its own advantage, from the values of a critic."""

    discount: Share = 1.0
    """What a reward loses with each token (gamma)."""
    decay: Share = 0.95
    """What a temporal difference loses with each token (lambda); 1 is reward less value, 0 is one step."""
    normalise: bool = True
    """Bring the advantages of the batch's tokens to mean 0 and standard deviation 1."""
    epsilon: Positive = 1e-6
    """Added to that standard deviation."""

    @property
    def needs_critic(self) -> bool:
        return True

    @property
    def whole_batch_reason(self) -> str | None:
        """Why no advantage is known before the batch is complete; None where a trajectory is enough."""
        if not self.normalise:
            return None
        return "advantage.normalise = true: no advantage is known before the batch is complete"

    @property
    def needs_whole_batch(self) -> bool:
        return self.whole_batch_reason is not None


class LossConfig(Part, frozen=True, tag_field="kind", tag="loss"):
    """The base of the policy losses' records. `r` is the policy's ratio to the behaviour policy."""

    @property
    def needs_proximal(self) -> bool:
        """Whether the policy's logprobs at the start of the train step are needed."""
        return False


class PolicyGradientConfig(LossConfig, frozen=True, tag="policy_gradient"):
    """REINFORCE without a ratio: for on-policy data only."""


class PpoConfig(LossConfig, frozen=True, tag="ppo"):
    """PPO's clipped surrogate on the token ratio."""

    clip_low: Share = 0.2
    """A ratio is clipped below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """A ratio is clipped above 1 + clip_high."""
    dual_clip: AboveOne | None = None
    """Largest ratio with which a token of negative advantage is pushed down."""


class GspoConfig(LossConfig, frozen=True, tag="gspo"):
    """PPO's clipped surrogate on the geometric mean of a trajectory's ratios."""

    clip_low: Share = 3e-4
    """A trajectory's ratio is clipped below 1 - clip_low."""
    clip_high: NonNegative = 4e-4
    """A trajectory's ratio is clipped above 1 + clip_high."""


class CispoConfig(LossConfig, frozen=True, tag="cispo"):
    """REINFORCE weighted by the clipped token ratio: no token loses its gradient."""

    weight_low: NonNegative = 0.0
    """Smallest weight; 0 is no lower bound."""
    weight_high: Positive = 5.0
    """Largest weight."""

    def __post_init__(self) -> None:
        _check_range("loss.weight", self.weight_low, self.weight_high)


class TisConfig(LossConfig, frozen=True, tag="tis"):
    """REINFORCE weighted by the truncated token ratio."""

    weight_high: Positive = 1.0
    """Largest weight."""


class ToprConfig(LossConfig, frozen=True, tag="topr"):
    """REINFORCE where the advantage is positive, a truncated ratio as its weight where it is negative."""

    level: Literal["sequence", "token"] = "sequence"
    """Whether the ratio is the whole trajectory's or each token's."""
    weight_high: Positive = 1.0
    """Largest weight of a negative trajectory."""
    positive_share: NonNegative = 1.0
    """Factor of what has a positive advantage."""
    negative_share: NonNegative = 1.0
    """Factor of what has a negative advantage."""


class DecoupledPpoConfig(LossConfig, frozen=True, tag="decoupled_ppo"):
    """PPO about the policy at the start of the train step, weighted by that one's ratio to the behaviour."""

    clip_low: Share = 0.2
    """The ratio to the proximal policy is clipped below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """The ratio to the proximal policy is clipped above 1 + clip_high."""
    weight_high: Positive = 5.0
    """Largest weight, proximal over behaviour."""

    @property
    def needs_proximal(self) -> bool:
        return True


class Kimi15Config(LossConfig, frozen=True, tag="kimi15"):
    """REINFORCE with a penalty on the squared log ratio of the whole trajectory."""

    tau: NonNegative = 0.1
    """Strength of the penalty."""


AnyAdvantageConfig = AdvantageConfig | GaeConfig
AnyLossConfig = (
    PpoConfig
    | PolicyGradientConfig
    | GspoConfig
    | CispoConfig
    | TisConfig
    | ToprConfig
    | DecoupledPpoConfig
    | Kimi15Config
)


class AggregationConfig(Part, frozen=True):
    """How token losses become the batch's."""

    over: Literal["token", "sequence", "constant"] = "token"
    """Mean over all tokens; mean of the trajectories' means; sum over trajectories x `length`."""
    length: PositiveInt | None = None
    """The constant length, for `constant` only: usually the most tokens a response may have."""

    def __post_init__(self) -> None:
        if (self.over == "constant") != (self.length is not None):
            raise ConfigError(
                f"aggregation.over = {self.over} with aggregation.length = {self.length}",
                hint="a length goes with constant, and constant needs one",
            )


class KlConfig(Part, frozen=True):
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


class OverlongConfig(Part, frozen=True):
    """What a trajectory cut at the length cap, or near it, costs."""

    mask: bool = False
    """Leave the tokens of cut trajectories out of the loss (counted as `masked: overlong`)."""
    penalty: NonNegative = 0.0
    """Taken from the reward at the cap; less within the buffer before it."""
    buffer_share: Annotated[float, Meta(gt=0, le=1)] = 0.2
    """Share of the cap over which the penalty rises."""


class CorrectionConfig(Part, frozen=True):
    """Weigh tokens by trainer over engine, both under the weights that generated them."""

    level: Literal["token", "sequence", "geometric"] = "token"
    """Each token's ratio, the product of a trajectory's, or its geometric mean."""
    treatment: Literal["truncated", "masked"] = "truncated"
    """What happens to a weight out of bounds: it becomes the bound, or zero."""
    low: NonNegative = 0.0
    high: Positive = 2.0

    def __post_init__(self) -> None:
        _check_range("correction", self.low, self.high)


class AlgorithmConfig(Part, frozen=True):
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


def _check_range(name: str, low: float, high: float) -> None:
    if low > high:
        raise ConfigError(
            f"{name}: the lower bound {low} is above the upper bound {high}",
            hint="give bounds with low <= high",
        )
