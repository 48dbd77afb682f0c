"""Every choice of an algorithm as a frozen record that checks itself.

Advantage, loss, aggregation, KL, entropy, overlong and correction are orthogonal: any advantage goes with any
loss (`losses.py`). What has a name in the literature is a preset (`presets.py`), an AlgorithmConfig like any
other.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.loss_configs import AnyLossConfig, PpoConfig
from dora_rl.core.recipe.section import NonNegative, Positive, PositiveFloat, Section, Share, check_range


class AdvantageConfig(Section, frozen=True, tag_field="kind", tag="outcome"):
    """One advantage for all tokens of a trajectory: its reward, less a baseline, over a scale."""

    baseline: Literal["group", "leave_one_out", "batch", "none"] = "group"
    """What is subtracted: the mean of the group, of the group's other members, of the batch, or nothing."""
    scale: Literal["group", "batch", "none"] = "group"
    """What is divided by: the standard deviation (ddof 1) in the group, or of all the batch's deviations."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation that `scale` divides by."""

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


class GaeConfig(Section, frozen=True, tag_field="kind", tag="gae"):
    """Every token gets its own advantage, from the values of a critic."""

    discount: Share = 1.0
    """Factor of a reward for each token between (gamma)."""
    decay: Share = 0.95
    """Factor of a temporal difference for each token between (lambda); 1 is reward less value, 0 one step."""
    normalise: bool = True
    """Bring the advantages of the batch's tokens to mean 0 and standard deviation 1."""
    epsilon: PositiveFloat = 1e-6
    """Added to the standard deviation that `normalise` divides by."""

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


class CustomAdvantageConfig(Section, frozen=True, tag_field="kind", tag="custom"):
    """An advantage of your own: a Python function, see docs/extending.md."""

    function: str
    """Where the advantage is: `file.py:function` or `module:function`. In a file the name may stand for the
    whole section: `advantage: advantages.py:my_advantage`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments the advantage always gets, beside the rewards."""

    @property
    def needs_critic(self) -> bool:
        return False


AnyAdvantageConfig = AdvantageConfig | GaeConfig | CustomAdvantageConfig


class AggregationConfig(Section, frozen=True):
    """How the losses of tokens become the loss of the batch."""

    over: Literal["token", "sequence", "constant"] = "token"
    """Mean over all tokens; mean of the trajectories' means; sum over trajectories x `length`."""
    length: Positive | None = None
    """The constant length, for `constant` only; left out, the most tokens a response may have."""

    def __post_init__(self) -> None:
        if self.over != "constant" and self.length is not None:
            raise ConfigError(
                f"aggregation.over = {self.over} has no use for aggregation.length = {self.length}",
                hint="set aggregation.over to constant, or leave aggregation.length out",
            )


class KlConfig(Section, frozen=True):
    """A penalty that keeps the policy near a reference."""

    coefficient: NonNegative = 0.04
    """Weight of the KL of a token."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """The KL of a token: the log ratio, half its square, or `exp(-log ratio) - 1 + log ratio`."""
    into: Literal["loss", "reward"] = "loss"
    """Add the KL to the loss, with gradient, or take it from the reward, without."""

    def __post_init__(self) -> None:
        if self.into == "loss" and self.estimator == "k1":
            raise ConfigError(
                "kl.estimator = k1 in the loss pulls nowhere: its expected gradient is zero",
                hint="set kl.estimator to k2 or k3, or kl.into to reward",
            )


class OverlongConfig(Section, frozen=True):
    """The cost of a trajectory that was cut at the length cap, or ended near it."""

    mask: bool = False
    """Leave the tokens of cut trajectories out of the loss (counted as `masked: overlong`)."""
    penalty: NonNegative = 0.0
    """Reward taken from a trajectory at the cap; less within the buffer before it."""
    buffer_share: Annotated[float, Meta(gt=0, le=1)] = 0.2
    """Share of the cap, before it, over which the penalty rises."""


class CorrectionConfig(Section, frozen=True):
    """Weights of tokens: trainer's over engine's probability, both under the version that generated them."""

    level: Literal["token", "sequence", "geometric"] = "token"
    """Weigh by each token's ratio, the product of a trajectory's, or its geometric mean."""
    treatment: Literal["truncated", "masked"] = "truncated"
    """What a weight out of bounds becomes: the bound, or zero."""
    low: NonNegative = 0.0
    """Lower bound of a correction weight."""
    high: PositiveFloat = 2.0
    """Upper bound of a correction weight."""

    def __post_init__(self) -> None:
        check_range("correction", self.low, self.high)


Credit = Literal["episode", "turn"]


class AlgorithmConfig(Section, frozen=True):
    """How the policy learns from a batch."""

    advantage: AnyAdvantageConfig = field(default_factory=AdvantageConfig)
    """What a trajectory or a token is worth. In a file also `advantage: file.py:function` for one of your
    own."""
    credit: Credit = "episode"
    """What the turns of an episode are worth: all the episode's whole reward, or each what came from it on;
    baseline and scale are those of whole rewards either way."""
    loss: AnyLossConfig = field(default_factory=PpoConfig)
    """The policy loss. In a file also its kind alone, `loss: cispo`, or `loss: file.py:function` for one of
    your own."""
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    kl: KlConfig | None = None
    """Keep the policy near the initial model; left out, there is no reference model."""
    entropy_bonus: NonNegative = 0.0
    """Weight of the entropy of a token, taken from the loss."""
    overlong: OverlongConfig = field(default_factory=OverlongConfig)
    correction: CorrectionConfig | None = None
    """Weigh tokens by trainer over engine; left out, what the engine recorded is taken as it is."""

    def __post_init__(self) -> None:
        if self.credit == "turn" and isinstance(self.advantage, CustomAdvantageConfig):
            raise ConfigError(
                "algorithm.credit = turn needs an advantage with a baseline and a scale: a function of your "
                "own gives one number an episode",
                hint="set algorithm.credit=episode, or algorithm.advantage.kind to outcome or gae",
            )
