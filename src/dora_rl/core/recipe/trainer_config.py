"""How training is set up, the optimizer and its learning rate.

What other parts of the recipe say about training comes together in TrainerConfig.
"""

from typing import Literal

from msgspec import field

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.algorithm import AlgorithmConfig
from dora_rl.core.recipe.section import Count, NonNegative, Positive, PositiveFloat, Share
from dora_rl.core.record import Record


class ScheduleConfig(Record, frozen=True):
    """The learning rate over optimizer updates, as a share of its peak."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """How the rate goes on after its warm-up: it stays, or falls to the floor in a line or half a cosine."""
    warmup_updates: Count = 0
    """Updates over which the rate rises linearly from zero."""
    total_updates: Positive | None = None
    """Updates after which a linear or cosine rate has reached its floor; left out in a file, those of the
    run."""
    floor: Share = 0.0
    """Where a falling learning rate ends, as a share of the peak."""

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
    """Peak learning rate."""
    beta1: Share = 0.9
    """Decay rate of the first moment (mean of gradients)."""
    beta2: Share = 0.999
    """Decay rate of the second moment (mean of squared gradients)."""
    epsilon: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    weight_decay: NonNegative = 0.0
    """Weight decay of matrices, decoupled from the gradient; norms and biases have none."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Largest global norm of the gradients, which are scaled down to it; null is no limit."""
    learning_rate_schedule: ScheduleConfig = field(default_factory=ScheduleConfig)


LORA_TARGETS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj",
)  # fmt: skip


class LoraConfig(Record, frozen=True):
    """Train low-rank changes of some matrices instead of all weights."""

    rank: Positive = 16
    """Rank of the low-rank changes."""
    alpha: PositiveFloat = 32.0
    """Scale of the change: it is multiplied by alpha / rank."""
    targets: tuple[str, ...] = LORA_TARGETS
    """Names of the matrices that change, as in the model's checkpoint; what it lacks is passed over."""
    adapter: str | None = None
    """A peft adapter to go on from, a directory, whose rank, alpha and targets are taken over; left out,
    fresh factors. `model` may be such a directory too, which names its model."""
    merged_checkpoints: bool = False
    """Write the merged model beside the adapter, in `merged` of each checkpoint."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.targets) - set(LORA_TARGETS))
        if unknown or not self.targets:
            what = f"names {', '.join(unknown)}, which no layer here is called" if unknown else "is empty"
            raise ConfigError(f"trainer.lora.targets {what}", hint=f"choose of {', '.join(LORA_TARGETS)}")

    @property
    def scale(self) -> float:
        """Factor of the product of the two low-rank factors, alpha / rank."""
        return self.alpha / self.rank


class CriticConfig(Record, frozen=True):
    """A value head on the policy's hidden states."""

    loss_weight: PositiveFloat = 0.5
    """Weight of the value loss beside the policy's."""
    trains_trunk: bool = True
    """Whether the value loss reaches the layers below its head."""
    value_clip: PositiveFloat | None = None
    """How far a token's value may move within a train step, for the loss; left out, any distance."""


class GapConfig(Record, frozen=True):
    """When the gap between recorded and recomputed logprobs is worth a warning."""

    max_mean: PositiveFloat = 0.05
    """Largest mean absolute gap without a warning, in nats a token."""
    max_growth: PositiveFloat = 3.0
    """Largest growth of the gap against its own running level without a warning."""


MICRO_BATCH_TOKENS = 16_384
"""Tokens of one forward and backward pass where nobody says otherwise and memory has room for them."""


class TrainerSettings(Record, frozen=True):
    """How the trainer computes: memory, precision, kernels, what is trained."""

    model: Literal["auto", "native", "transformers"] = "auto"
    """Who computes the model that is trained: the `native` decoder, or `transformers`, which opens any causal
    model; `auto` is native where it knows the family."""
    micro_batch_tokens: Positive | None = None
    """Most tokens of one forward and backward pass; a longer trajectory has one to itself. Left out, 16,384,
    or fewer where memory has no room for so many."""
    serving_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Precision of a published version, and of the weights the forward pass multiplies with."""
    gradient_checkpointing: bool = False
    """Compute layers again in the backward pass: less memory, a third more work."""
    compile: bool | None = None
    """Run layers through the compiler; left out, on GPUs only."""
    fused_head: bool | None = None
    """Take gradients from the logits while they are there; left out, on GPUs only."""
    attention: Literal["auto", "varlen", "flex", "packed", "padded"] = "auto"
    """Attention over packed sequences: torch's varlen or flex kernels, a plain reference, or the best there
    is. Models of transformers are `packed`, or `padded` with attention of their own."""
    lora: LoraConfig | None = None
    """Train low-rank changes of some matrices instead of all weights; left out, all weights."""
    critic: CriticConfig | None = None
    """A value head on the policy's hidden states; left out, one where the advantage needs it."""
    load_balance: PositiveFloat | Literal["model"] | None = None
    """Coefficient of the load-balance loss of a mixture of experts; `model` is that of its config.json, left
    out there is none. `router/imbalance` is reported in any case."""
    router_replay: bool = False
    """Train a mixture of experts with the experts that the engine took, where it recorded them; the trainer
    chooses those of other tokens itself. `router/replayed` is their share. On the CPU's native engine."""
    kept_versions: Count = 0
    """Latest versions whose weights stay in memory, to compute again the logprobs of what they generated. A
    correction needs them: one more than the staleness that may come."""
    gap: GapConfig = field(default_factory=GapConfig)


class TrainerConfig(TrainerSettings, frozen=True):
    """All that a trainer is given but for its model and devices, gathered from the recipe."""

    micro_batch_tokens: Positive = MICRO_BATCH_TOKENS
    """Most tokens of one forward and backward pass; a longer trajectory has one to itself."""
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    updates: Positive = 1
    """Optimizer updates a train step makes, each on its share of the groups."""
    seed: Count = 0
    """Seed of what training draws: fresh LoRA factors."""

    def __post_init__(self) -> None:
        if self.algorithm.correction is not None and not self.kept_versions:
            raise ConfigError(
                "a correction compares engine and trainer under the version that generated, and none is kept",
                hint="set kept_versions to the staleness bound plus one, or leave the correction out",
            )
        if self.algorithm.advantage.needs_critic and self.critic is None:
            raise ConfigError("this advantage needs a critic", hint="set critic")
