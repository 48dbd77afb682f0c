"""What only the simulator needs: costs, faults, what control is told."""

from typing import Annotated, Literal

from msgspec import Meta, field

from dora_rl.core.recipe.section import Count, Seconds, Section, Share


class Costs(Section, frozen=True):
    """Calibration of the cost models; the defaults are a well-tuned engine and trainer."""

    decode_floor_s: Seconds = 0.0
    """No decode step is faster: launching kernels from the host, which the device's work hides behind."""
    decode_overhead_s: Seconds = 0.001
    """Added to every decode step: scheduling and sampling on the host."""
    bandwidth_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.85
    compute_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Share of peak that prefill reaches."""
    train_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.4
    """Share of peak that training reaches, forward passes for logprobs included."""
    update_s: Seconds = 0.5
    """Fixed time of an optimizer update."""
    switch_s: Seconds = 5.0
    """Time an elastic device needs to change between generating and training."""
    delta_share: Share = 0.03
    """Bytes of a published delta as a share of the weights; 1 is full weights."""
    publish_s: Seconds = 0.2
    """Time the trainer is held up by publishing, besides copying the delta."""
    expert_imbalance: Annotated[float, Meta(ge=1)] = 1.2
    """Load of the busiest expert over the mean, for mixtures of experts."""


class Faults(Section, frozen=True):
    """What goes wrong in a simulated run."""

    instance_deaths_per_hour: Share = 0.0
    """Share of the instances that die in an hour."""
    restart_s: Seconds = 120.0
    """Time until a dead instance is back."""
    hang_share: Share = 0.0
    """Share of those deaths that are silent."""
    slow_share: Share = 0.0
    """Share of instances that run at half speed."""
    trainer_losses_per_hour: Annotated[float, Meta(ge=0)] = 0.0
    """How often an hour the trainer loses the step in flight."""
    journal_lag_tokens: Count = 64
    """Tokens of an unfinished trajectory that die with its instance."""


class Simulation(Section, frozen=True):
    """What only the simulator needs."""

    warmup_steps: Count = 2
    """Steps left out of the averages while the pipeline fills."""
    estimates: Literal["learned", "oracle", "half", "double"] = "learned"
    """What control knows: what it saw, the truth, or the former wrong by a factor of two."""
    costs: Costs = field(default_factory=Costs)
    faults: Faults = field(default_factory=Faults)
