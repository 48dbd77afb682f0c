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
PositiveInt = Annotated[int, Meta(ge=1)]


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """One choice; where several kinds answer the same question, `kind` names the one."""


class OutcomeAdvantageConfig(Part, frozen=True, tag="outcome"):
    """Every token of a trajectory gets one advantage: its reward, less a baseline, over a scale."""

    baseline: Literal["group", "leave_one_out", "batch", "none"] = "group"
    """What is subtracted: the mean of the group, of the group's other members, of the batch, or nothing."""
    scale: Literal["group", "batch", "none"] = "group"
    """What is divided by: the standard deviation (ddof 1) within the group, over the batch, or nothing."""
    epsilon: Positive = 1e-6
    """Added to the standard deviation."""

    def __post_init__(self) -> None:
        allowed = {"group": ("group", "leave_one_out"), "batch": ("group", "leave_one_out", "batch")}
        if self.scale != "none" and self.baseline not in allowed[self.scale]:
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
        whose = {"baseline": self.baseline, "scale": self.scale}
        names = [f"advantage.{name}" for name, over in whose.items() if over == "batch"]
        if not names:
            return None
        return f"{' and '.join(names)} = batch: advantages are not known before the whole batch is"

    @property
    def needs_whole_batch(self) -> bool:
        return self.whole_batch_reason is not None


AdvantageConfig = OutcomeAdvantageConfig


class LossConfig(Part, frozen=True):
    """The base of the policy losses' configurations."""


class PolicyGradientConfig(LossConfig, frozen=True, tag="policy_gradient"):
    """REINFORCE without a ratio: for on-policy data only."""


class PpoConfig(LossConfig, frozen=True, tag="ppo"):
    """PPO's clipped surrogate on the token ratio."""

    clip_low: Share = 0.2
    """Below 1 - clip_low a ratio is clipped."""
    clip_high: NonNegative = 0.2
    """Above 1 + clip_high a ratio is clipped."""
    dual_clip: Annotated[float, Meta(gt=1)] | None = None
    """Largest ratio that a token with a negative advantage is pushed down by."""


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


class AlgorithmConfig(Part, frozen=True):
    """All of it."""

    advantage: OutcomeAdvantageConfig = field(default_factory=OutcomeAdvantageConfig)
    loss: PolicyGradientConfig | PpoConfig = field(default_factory=PpoConfig)
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
