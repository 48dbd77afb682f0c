"""How training is set up. What other parts of the recipe say about it comes together in TrainerConfig."""

from typing import Literal

from msgspec import field

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.algorithm import AlgorithmConfig
from dora_rl.core.recipe.optimizer import OptimizerConfig
from dora_rl.core.recipe.section import Count, Positive, PositiveFloat
from dora_rl.core.record import Record

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoraConfig(Record, frozen=True):
    """Train low-rank changes of some matrices instead of all weights."""

    rank: Positive = 16
    alpha: PositiveFloat = 32.0
    """The change is scaled by alpha / rank."""
    targets: tuple[str, ...] = LORA_TARGETS
    """Published names of the matrices that change."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.targets) - set(LORA_TARGETS))
        if unknown or not self.targets:
            raise ConfigError(f"lora.targets {unknown or 'is empty'}", hint=f"choose of {LORA_TARGETS}")

    @property
    def scale(self) -> float:
        """Of the product of the two factors."""
        return self.alpha / self.rank


class CriticConfig(Record, frozen=True):
    """A value head on the policy's hidden states."""

    loss_weight: PositiveFloat = 0.5
    """Of the value loss beside the policy's."""
    trains_trunk: bool = True
    """Whether the value loss reaches the layers below its head."""


class GapConfig(Record, frozen=True):
    """When the gap between recorded and recomputed logprobs is worth a warning."""

    max_mean: PositiveFloat = 0.05
    """Mean absolute gap, nats a token."""
    max_growth: PositiveFloat = 3.0
    """Against its own running level."""


class TrainerSettings(Record, frozen=True):
    """The trainer's own section."""

    micro_batch_tokens: Positive = 16_384
    """Most tokens of one forward and backward pass; a longer trajectory has one to itself."""
    serving_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of a published version, and of the weights the forward pass multiplies with."""
    gradient_checkpointing: bool = False
    """Compute layers again in the backward pass: less memory, a third more work."""
    compile: bool | None = None
    """Run layers through the compiler; left out, on GPUs only."""
    fused_head: bool | None = None
    """Take gradients from the logits while they are there; left out, on GPUs only."""
    attention: Literal["auto", "varlen", "flex", "packed"] = "auto"
    lora: LoraConfig | None = None
    critic: CriticConfig | None = None
    kept_versions: Count = 0
    """Latest versions whose weights stay in memory, to compute again the logprobs of what they generated. A
    correction needs them: one more than the staleness that may come."""
    gap: GapConfig = field(default_factory=GapConfig)


class TrainerConfig(TrainerSettings, frozen=True):
    """A trainer, but for its model and devices: its own section and what others say about it."""

    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    updates: Positive = 1
    """Optimizer updates a train step makes, each on its share of the groups."""
    seed: Count = 0
    """Of what training draws: fresh LoRA factors."""

    def __post_init__(self) -> None:
        if self.algorithm.correction is not None and not self.kept_versions:
            raise ConfigError(
                "a correction compares engine and trainer under the version that generated, and none is kept",
                hint="set kept_versions to the staleness bound plus one, or leave the correction out",
            )
        if self.algorithm.advantage.needs_critic and self.critic is None:
            raise ConfigError("this advantage needs a critic", hint="set critic")
