"""The policy losses, each with its own numbers. `r` is the policy's ratio to the behaviour policy."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from dora_rl.core.recipe.section import NonNegative, PositiveFloat, Section, Share, check_range

AboveOne = Annotated[float, Meta(gt=1)]


class LossConfig(Section, frozen=True, tag_field="kind", tag="loss"):
    """The base of the built-in losses' records. `r` is the policy's ratio to the behaviour policy."""

    @property
    def needs_proximal(self) -> bool:
        """Whether the loss needs the policy's logprobs at the start of the train step."""
        return False


class PolicyGradientConfig(LossConfig, frozen=True, tag="policy_gradient"):
    """REINFORCE without a ratio: for on-policy data only."""


class PpoConfig(LossConfig, frozen=True, tag="ppo"):
    """PPO's clipped surrogate on the token ratio."""

    clip_low: Share = 0.2
    """Clips a token's ratio below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """Clips a token's ratio above 1 + clip_high."""
    dual_clip: AboveOne | None = None
    """Largest ratio with which a token of negative advantage is pushed down."""


class GspoConfig(LossConfig, frozen=True, tag="gspo"):
    """PPO's clipped surrogate on the geometric mean of a trajectory's ratios."""

    clip_low: Share = 3e-4
    """Clips a trajectory's ratio below 1 - clip_low."""
    clip_high: NonNegative = 4e-4
    """Clips a trajectory's ratio above 1 + clip_high."""


class CispoConfig(LossConfig, frozen=True, tag="cispo"):
    """REINFORCE weighted by the clipped token ratio: no token loses its gradient."""

    weight_low: NonNegative = 0.0
    """Smallest weight of a token; 0 is no lower bound."""
    weight_high: PositiveFloat = 5.0
    """Largest weight of a token."""

    def __post_init__(self) -> None:
        check_range("loss.weight", self.weight_low, self.weight_high)


class TisConfig(LossConfig, frozen=True, tag="tis"):
    """REINFORCE weighted by the truncated token ratio."""

    weight_high: PositiveFloat = 1.0
    """Largest weight of a token."""


class ToprConfig(LossConfig, frozen=True, tag="topr"):
    """REINFORCE where the advantage is positive, a truncated ratio as its weight where it is negative."""

    level: Literal["sequence", "token"] = "sequence"
    """Whether the ratio is the whole trajectory's or each token's."""
    weight_high: PositiveFloat = 1.0
    """Largest weight of a trajectory (or token, see `level`) of negative advantage."""
    positive_share: NonNegative = 1.0
    """Factor of the loss where the advantage is positive."""
    negative_share: NonNegative = 1.0
    """Factor of the loss where the advantage is negative."""


class DecoupledPpoConfig(LossConfig, frozen=True, tag="decoupled_ppo"):
    """PPO about the policy at the start of the train step, weighted by that one's ratio to the behaviour."""

    clip_low: Share = 0.2
    """The ratio to the proximal policy is clipped below 1 - clip_low."""
    clip_high: NonNegative = 0.2
    """The ratio to the proximal policy is clipped above 1 + clip_high."""
    weight_high: PositiveFloat = 5.0
    """Largest weight of a token, its probability under the proximal policy over the behaviour policy's."""

    @property
    def needs_proximal(self) -> bool:
        return True


class Kimi15Config(LossConfig, frozen=True, tag="kimi15"):
    """REINFORCE with a penalty on the squared log ratio of the whole trajectory."""

    tau: NonNegative = 0.1
    """Strength of the penalty on the squared log ratio."""


class CustomLossConfig(Section, frozen=True, tag_field="kind", tag="custom"):
    """A policy loss of your own: a Python function, see docs/extending.md."""

    function: str
    """Where the loss is: `file.py:function` or `module:function`. In a file the name may stand for the whole
    section: `loss: losses.py:my_loss`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments the loss always gets, beside the tokens."""


AnyLossConfig = (
    PpoConfig
    | PolicyGradientConfig
    | GspoConfig
    | CispoConfig
    | TisConfig
    | ToprConfig
    | DecoupledPpoConfig
    | Kimi15Config
    | CustomLossConfig
)
