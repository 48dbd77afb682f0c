"""What is known of a run from its events alone: each train step, each evaluation, everything at once."""

from dora_rl.core.record import Record


class StepFacts(Record, frozen=True):
    """One train step, once its version was published."""

    step: int
    """Counted from 1: the version it published."""
    published_at: float
    """Seconds of the run."""
    step_s: float
    """Since the version before was published."""
    train_s: float
    starved_s: float
    """The trainer waited for groups to finish."""
    window_s: float
    """The trainer waited for old groups that had to be in this batch."""
    generated_tokens: int
    """Of trajectories that ended meanwhile, whatever batch they are in."""
    reward: float | None
    """Mean of the batch; None where no trajectory has a reward."""
    reward_std: float | None
    """Mean over groups of the deviation within a group."""
    zero_variance_share: float
    """Groups whose rewards are all equal."""
    mean_tokens: float
    max_tokens: int
    truncated_share: float
    staleness_mean: float
    staleness_max: int
    num_trajectories: int


class EvaluationFacts(Record, frozen=True):
    """Held-out rows under one version, as far as they are scored."""

    version: int
    num_scored: int
    reward: float


class FailureFacts(Record, frozen=True):
    """One kind of failure of one reward function."""

    function: str
    reason: str
    count: int
    """Trajectories that have no reward because of it."""
    example: str
    """What was wrong the first time, in one line."""

    @property
    def name(self) -> str:
        return f"reward {self.function}, {self.reason}"


class FaultFacts(Record, frozen=True):
    """The deaths of one worker."""

    worker: str
    count: int
    last_reason: str


class WarningFacts(Record, frozen=True):
    """A reason why a run may not be worth going on with."""

    step: int
    """Train steps that were done when it was first given."""
    text: str
    """As it was given then."""
    now: str | None
    """The same with the latest figures, where it still holds."""


class RunState(Record, frozen=True):
    """What goes on in a run at one moment."""

    at: float
    version: int
    """Newest that was published."""
    trainer: str
    """What the trainer does or waits for."""
    active_by_version: dict[int, int]
    """Groups."""
    running: dict[int, dict[int, int]]
    """Requests that decode, by instance and version."""
    outcomes: dict[str, int]
    """Trajectories that ended outside a batch, by the name of the outcome."""
    failures: list[FailureFacts]
    """Of reward functions."""
    faults: list[FaultFacts]
    """Of workers."""
    num_replays: int
    """Steps trained again after a restart of the trainer."""
    num_different: int
    """Values in which those differ from what was published."""
