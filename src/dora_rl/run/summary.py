"""How a run ended: what `run_live` returns and `finished.json` holds."""

from dora_rl.core.record import Record


class RunSummary(Record, frozen=True):
    """A run, once it is over or was interrupted."""

    run_directory: str
    is_complete: bool
    """All steps are done and in a checkpoint; otherwise it was interrupted and can be resumed."""
    steps: int
    """Versions published, of this run and of what it resumed."""
    elapsed_s: float
    """Of the run's own clock, which stands still between an interruption and a resumption."""
    trained_trajectories: int
    closed_trajectories: dict[str, int]
    """By the name of the outcome."""
    staleness_mean: float
    staleness_max: int
    starved_s: float
    window_stall_s: float
    worker_deaths: dict[str, int]
    """By the name of the worker, since this process began."""
    reward_failures: dict[str, int]
    """Trajectories without a reward by the name of the failure, since this process began."""
    checkpoint: str | None
    """The newest one: a Hugging Face directory."""
    last_metrics: dict[str, float | None]
    """Of the last step."""
