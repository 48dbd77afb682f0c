"""What a trajectory or a token is worth: from rewards alone, or with a critic."""

from typing import Literal

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.section import PositiveFloat, Section, Share


class AdvantageConfig(Section, frozen=True, tag_field="kind", tag="outcome"):
    """Every token of a trajectory gets one advantage: its reward, less a baseline, over a scale."""

    baseline: Literal["group", "leave_one_out", "batch", "none"] = "group"
    """What is subtracted: the mean of the group, of the group's other members, of the batch, or nothing."""
    scale: Literal["group", "batch", "none"] = "group"
    """What is divided by: the standard deviation (ddof 1) in the group, or of all the batch's deviations."""
    epsilon: PositiveFloat = 1e-6
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


class GaeConfig(Section, frozen=True, tag_field="kind", tag="gae"):
    """Every token gets its own advantage, from the values of a critic."""

    discount: Share = 1.0
    """What a reward loses with each token (gamma)."""
    decay: Share = 0.95
    """What a temporal difference loses with each token (lambda); 1 is reward less value, 0 is one step."""
    normalise: bool = True
    """Bring the advantages of the batch's tokens to mean 0 and standard deviation 1."""
    epsilon: PositiveFloat = 1e-6
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


AnyAdvantageConfig = AdvantageConfig | GaeConfig
