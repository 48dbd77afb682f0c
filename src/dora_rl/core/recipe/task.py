"""The prompts and responses of a run as the simulator and the planner imagine them."""

from typing import Annotated

from msgspec import Meta, field

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.section import Count, Positive, PositiveFloat, Seconds, Section, Share


class Lognormal(Section, frozen=True, tag="lognormal", tag_field="kind"):
    """Response lengths: lognormal, cut to [min_tokens, max_tokens]."""

    median_tokens: PositiveFloat = 300.0
    sigma: Annotated[float, Meta(ge=0)] = 1.0
    min_tokens: Positive = 16
    max_tokens: Positive = 4096
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
    max_tokens: Positive = 32768

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
    failure_rate: Share = 0.0
    """Chance that a turn's environment fails."""


class Task(Section, frozen=True):
    """The prompts and what they cost, as the simulator imagines them."""

    rows: Positive = 17_000
    """Rows of the data set."""
    prompt_tokens: Positive = 128
    """Mean prompt length."""
    lengths: Lognormal | Empirical = field(default_factory=Lognormal)
    turns: Turns = field(default_factory=Turns)
    score_s: Seconds = 0.0
    """Time to score a trajectory."""
    zero_variance_rate: Share = 0.0
    """Share of groups whose rewards come out all equal."""
