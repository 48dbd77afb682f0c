"""What only the simulator and the planner need: imagined prompts and responses, costs, faults."""

from typing import Annotated, Literal

from msgspec import Meta, field

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.section import Count, Positive, PositiveFloat, Seconds, Section, Share


class Lognormal(Section, frozen=True, tag="lognormal", tag_field="kind"):
    """Response lengths: lognormal, cut to [min_tokens, max_tokens]."""

    median_tokens: PositiveFloat = 300.0
    """Median length of a response."""
    sigma: Annotated[float, Meta(ge=0)] = 1.0
    """Standard deviation of the logarithm of the length."""
    min_tokens: Positive = 16
    """Shortest length of a response."""
    max_tokens: Positive = 4096
    """Longest length of a response: the cap."""
    sibling_correlation: Share = 0.0
    """Share of the variance of log length that members of a group have in common (prompt difficulty)."""

    def __post_init__(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"lengths.min_tokens = {self.min_tokens} is above lengths.max_tokens = {self.max_tokens}",
                hint="give a range with min_tokens <= max_tokens",
            )


class Empirical(Section, frozen=True, tag="empirical", tag_field="kind"):
    """Response lengths drawn from a file: a JSON list of integers."""

    path: str
    """The JSON file of lengths."""
    max_tokens: Positive = 32768
    """Longest length of a response: the cap."""

    @property
    def sibling_correlation(self) -> float:
        return 0.0


class Turns(Section, frozen=True):
    """Multi-turn episodes: the response is split into turns with environment tokens between them."""

    mean_turns: Annotated[float, Meta(ge=1)] = 1.0
    """Mean number of turns (geometric); 1 is single-turn."""
    environment_tokens: Count = 200
    """Tokens the environment appends after a turn."""
    latency_s: Seconds = 5.0
    """Median time the environment takes for a turn (lognormal)."""
    latency_sigma: Annotated[float, Meta(ge=0)] = 0.8
    """Standard deviation of the logarithm of the environment's time for a turn."""
    failure_rate: Share = 0.0
    """Chance that a turn's environment fails."""
    reset_s: Seconds = 0.0
    """Median time to reset an environment (lognormal with `latency_sigma`), where a run has episodes; a
    reset fails as often as a turn does."""
    role_tokens: Count = 0
    """Median tokens of the turn of a role that the initial model plays, before the environment replies; 0 for
    no role."""


class ImaginedTask(Section, frozen=True):
    """The prompts and what they cost, as the simulator imagines them."""

    rows: Positive = 17_000
    """Number of rows of the data set."""
    prompt_tokens: Positive = 128
    """Mean tokens of a prompt."""
    lengths: Lognormal | Empirical = field(default_factory=Lognormal)
    """Distribution of the tokens of a response."""
    turns: Turns = field(default_factory=Turns)
    score_s: Seconds = 0.0
    """Seconds to score a trajectory."""
    zero_variance_rate: Share = 0.0
    """Share of groups whose rewards come out all equal."""


class Costs(Section, frozen=True):
    """Calibration of the cost models; the defaults are a well-tuned engine and trainer."""

    decode_floor_s: Seconds = 0.0
    """Least seconds of a decode step: kernels are launched from the host, however little they do."""
    decode_overhead_s: Seconds = 0.001
    """Seconds added to every decode step: scheduling and sampling on the host."""
    bandwidth_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.85
    """Share of the memory's bandwidth that decoding reaches."""
    compute_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Share of the GPU's peak compute that prefill reaches."""
    train_efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.4
    """Share of the GPU's peak compute that training reaches, forward passes for logprobs included."""
    update_s: Seconds = 0.5
    """Fixed seconds of an optimizer update."""
    switch_s: Seconds = 5.0
    """Seconds an elastic device needs to change between generating and training."""
    delta_share: Share = 0.03
    """Bytes of a published delta as a share of the weights; 1 is full weights."""
    publish_s: Seconds = 0.2
    """Seconds the trainer is held up by publishing, besides copying the delta."""
    expert_imbalance: Annotated[float, Meta(ge=1)] = 1.2
    """Load of the busiest expert over the mean, for mixtures of experts."""


class Faults(Section, frozen=True):
    """What goes wrong in a simulated run."""

    instance_deaths_per_hour: Share = 0.0
    """Share of the instances that die in an hour."""
    restart_s: Seconds = 120.0
    """Seconds until a dead instance is back."""
    hang_share: Share = 0.0
    """Share of instance deaths that are silent: the instance hangs."""
    slow_share: Share = 0.0
    """Share of instances that run at half speed."""
    trainer_losses_per_hour: Annotated[float, Meta(ge=0)] = 0.0
    """How often an hour the trainer loses the step in flight."""
    journal_lag_tokens: Count = 64
    """Tokens of an unfinished trajectory that die with its instance."""


class Simulation(Section, frozen=True):
    """Settings of the simulator alone."""

    warmup_steps: Count = 2
    """Steps left out of the averages while the pipeline fills."""
    estimates: Literal["learned", "oracle", "half", "double"] = "learned"
    """What control believes: what it learned, the truth, or what it learned times one half or two."""
    costs: Costs = field(default_factory=Costs)
    faults: Faults = field(default_factory=Faults)
