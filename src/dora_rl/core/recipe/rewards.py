"""What judges a trajectory, and the processes that do."""

import math
from typing import Any, Literal

from msgspec import field

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.section import Count, Positive, PositiveFloat, Section


class RewardConfig(Section, frozen=True):
    """One reward function and its part in the sum."""

    function: str
    """A built-in name, `module:function` (or `module.function`), or `file.py:function`."""
    weight: float = 1.0
    """What its value is multiplied with."""
    per: Literal["trajectory", "group"] = "trajectory"
    """Called for each trajectory as it ends, with lists of length one, or for a whole group at once."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments it always gets, beside the columns."""
    name: str | None = None
    """Its name in metrics; left out, the function's own."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ConfigError(
                f"the weight of reward '{self.function}' is {self.weight}", hint="give a number"
            )

    @property
    def label(self) -> str:
        """The name that metrics and failures carry."""
        return self.name or self.function.replace(":", ".").rpartition(".")[2]


class ScoringSettings(Section, frozen=True):
    """The processes that reward functions run in."""

    processes: Positive = 2
    """Processes that score."""
    time_limit_s: PositiveFloat = 60.0
    """A call of one function that takes longer is a failure; a process that does not give way is replaced."""
    start_limit_s: PositiveFloat = 120.0
    """A process that has not imported its functions by then is replaced."""
    max_concurrent: Positive = 64
    """Requests a process works on at a time if one of its functions is asynchronous; otherwise it is one."""
    retries: Count = 1
    """How often a request is tried again after the process that had it died."""


class ScoringConfig(ScoringSettings, frozen=True, kw_only=True):
    """All the reward functions of a run, and the processes they run in."""

    rewards: tuple[RewardConfig, ...]

    def __post_init__(self) -> None:
        if not self.rewards:
            raise ConfigError(
                "rewards is empty: nothing would judge a trajectory", hint="name a reward function"
            )
        labels = [reward.label for reward in self.rewards]
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError(f"two rewards are called '{label}'", hint="give one of them a 'name'")
