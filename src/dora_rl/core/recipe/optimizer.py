"""The optimizer and its learning rate."""

from typing import Literal

from msgspec import field

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.section import Count, NonNegative, Positive, PositiveFloat, Share
from dora_rl.core.record import Record


class ScheduleConfig(Record, frozen=True):
    """The learning rate over optimizer updates, as a share of its peak."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup_updates: Count = 0
    """Updates over which the rate rises linearly from zero."""
    total_updates: Positive | None = None
    """After which a linear or cosine rate has reached its floor."""
    floor: Share = 0.0
    """Where it ends, as a share of the peak."""

    def __post_init__(self) -> None:
        if self.kind != "constant" and self.total_updates is None:
            raise ConfigError(
                f"a {self.kind} schedule has no end",
                hint="set total_updates to the number of updates of the run",
            )
        if self.total_updates is not None and self.total_updates <= self.warmup_updates:
            raise ConfigError(f"{self.warmup_updates} warm-up updates of {self.total_updates} leave none")


class OptimizerConfig(Record, frozen=True):
    """AdamW on float32 weights."""

    learning_rate: NonNegative = 1e-6
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegative = 0.0
    """Of matrices; norms and biases are left alone."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Gradients of a larger global norm are scaled down to it."""
    learning_rate_schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
