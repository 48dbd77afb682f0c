"""What is known of a run from its events alone: each train step, each evaluation, the state of the moment."""

from msgspec import field

from dora_rl.core.record import Record


class StepFacts(Record, frozen=True):
    """One train step whose version is published: its times, rewards, lengths and staleness."""

    step: int
    """Number of the step, counted from 1: the version it published."""
    published_at: float
    """Seconds from the run's beginning to the publish."""
    step_s: float
    """Seconds since the version before was published."""
    train_s: float
    starved_s: float
    """Seconds for which the trainer waited for groups to finish."""
    window_s: float
    """Seconds for which the trainer waited for old groups that had to be in this batch."""
    generated_tokens: int
    """Tokens of trajectories that ended during the step, whatever batch they are in."""
    reward: float | None
    """Mean reward of the batch; None where no trajectory has a reward."""
    reward_std: float | None
    """Standard deviation of rewards within a group, averaged over the batch's groups."""
    zero_variance_share: float
    """Share of groups whose rewards are all equal."""
    mean_tokens: float
    max_tokens: int
    truncated_share: float
    staleness_mean: float
    staleness_max: int
    num_trajectories: int
    values: dict[str, float] = field(default_factory=dict)
    """Mean value of each reward function over the batch, without its weight, by name."""


class EvaluationFacts(Record, frozen=True):
    """The mean reward of held-out rows under one version, as far as they are scored."""

    version: int
    num_scored: int
    reward: float
    values: dict[str, float] = field(default_factory=dict)
    """Mean value of each reward function, by name."""


class FailureFacts(Record, frozen=True):
    """One kind of failure of one reward function, counted."""

    function: str
    reason: str
    count: int
    """Number of trajectories without a reward because of this failure."""
    example: str
    """The failure's message the first time, in one line."""

    @property
    def name(self) -> str:
        return f"reward {self.function}, {self.reason}"


class FaultFacts(Record, frozen=True):
    """The deaths of one worker, counted."""

    worker: str
    count: int
    last_reason: str


class WarningFacts(Record, frozen=True):
    """A reason why a run may not be worth going on with."""

    step: int
    """Number of train steps done when the warning was first given."""
    text: str
    """The warning as it was first given."""
    now: str | None
    """The warning with the latest figures; None if it no longer holds."""
    until: int
    """Number of train steps done when it held no longer, or now if it still holds."""


class RunState(Record, frozen=True):
    """The state of a run at one moment."""

    at: float
    version: int
    """Newest version that was published."""
    trainer: str
    """What the trainer does or waits for, in words."""
    active_by_version: dict[int, int]
    """Number of active groups by version."""
    running: dict[int, dict[int, int]]
    """Number of requests that decode, by instance and version."""
    outcomes: dict[str, int]
    """Number of trajectories that ended outside a batch, by outcome."""
    skipped: dict[str, int]
    """Number of versions that were replaced before they started a group, by what kept them from it."""
    failures: list[FailureFacts]
    """Failures of reward functions, by function and kind."""
    faults: list[FaultFacts]
    """Deaths of workers, by worker."""
    num_replays: int
    """Number of steps trained again after a restart of the trainer."""
    num_different: int
    """Number of weights in which steps trained again differ from what was published."""
