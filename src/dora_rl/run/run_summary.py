"""How a run ended: what `run_live` returns and `finished.json` holds."""

from pathlib import Path

import msgspec

from dora_rl.core.record import Record


class RunSummary(Record, frozen=True):
    """How a run ended, once it is over or was interrupted."""

    run_directory: str
    is_complete: bool
    """Whether all steps are done and in a checkpoint; if not, the run was interrupted and can be resumed."""
    steps: int
    """Train steps published, including those before the run was resumed."""
    elapsed_s: float
    """Seconds on the run's own clock, which stands still between an interruption and a resumption."""
    trained_trajectories: int
    closed_trajectories: dict[str, int]
    """Trajectories that were not trained on, by the name of their outcome."""
    staleness_mean: float
    staleness_max: int
    starved_s: float
    window_stall_s: float
    worker_deaths: dict[str, int]
    """Deaths of workers since this process began, by the worker's name."""
    reward_failures: dict[str, int]
    """Trajectories without a reward since this process began, by the name of the failure."""
    checkpoint: str | None
    """The newest checkpoint, a Hugging Face directory."""
    last_metrics: dict[str, float | None]
    """The metrics of the last train step."""
    overlong_rows: int = 0
    """Rows of a stream that were left out because their prompts are too long."""
    steps_asked: int | None = None
    """Steps the recipe asks for, where the run has fewer because its stream of rows ended; else None."""


def read_summary(path: Path) -> RunSummary | None:
    """The summary that a finished run left in a file; None where there is none, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunSummary)
    except (OSError, msgspec.DecodeError):
        return None
