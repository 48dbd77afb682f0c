"""A live run from its beginning, or from where it was cut short, to its end."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dora_rl.runtime.orchestrator.loop import Orchestrator
from dora_rl.runtime.orchestrator.opening import Opened, open_again, open_new
from dora_rl.runtime.orchestrator.writing import Watcher
from dora_rl.runtime.setup import LiveSetup
from dora_rl.runtime.summary import RunSummary

__all__ = ["Watcher", "resume_live", "run_live"]


def run_live(setup: LiveSetup, watchers: Sequence[Watcher] = ()) -> RunSummary:
    """Run a set-up to its end, or until it is interrupted, leaving everything in its run directory.

    The first SIGINT or SIGTERM lets the step in progress end, writes a checkpoint and returns; the second
    returns at once. Either way `resume_live` goes on. A UserError: the set-up cannot work; another DoraError:
    the run could not go on, with the reason; what is durable can be resumed.
    """
    return _run(open_new(setup), watchers)


def resume_live(run_directory: Path, watchers: Sequence[Watcher] = ()) -> RunSummary:
    """Go on with a run that was interrupted, killed or failed, as `run_live` would have."""
    return _run(open_again(run_directory), watchers)


def _run(opened: Opened, watchers: Sequence[Watcher]) -> RunSummary:
    try:
        orchestrator = Orchestrator(opened, tuple(watchers))
        orchestrator.run()
        if orchestrator.interrupts.count < 2:
            orchestrator.stop()
        summary = _summary(opened, orchestrator)
        if summary.is_complete:
            opened.directory.finish(msgspec.to_builtins(summary))
        return summary
    finally:
        opened.close()


def _summary(opened: Opened, orchestrator: Orchestrator) -> RunSummary:
    plane = opened.plane
    staleness = plane.meters.staleness
    return RunSummary(
        run_directory=str(opened.layout.root),
        is_complete=plane.is_done,
        steps=plane.window.newest,
        elapsed_s=orchestrator.now,
        trained_trajectories=plane.ledger.num_committed,
        closed_trajectories=dict(plane.ledger.outcomes),
        staleness_mean=sum(s * n for s, n in staleness.items()) / max(1, staleness.total()),
        staleness_max=max(staleness, default=0),
        starved_s=plane.meters.starved_s,
        window_stall_s=plane.meters.window_stall_s,
        worker_deaths=dict(orchestrator.deaths.total),
        checkpoint=orchestrator.checkpoint,
        last_metrics=orchestrator.metrics.last,
    )
