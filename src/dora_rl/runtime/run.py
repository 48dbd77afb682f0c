"""A live run from its beginning, or from where it was cut short, to its end."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input
from dora_rl.runtime.setup import LiveSetup
from dora_rl.runtime.summary import RunSummary

Watcher = Callable[[Input, list[Decision]], None]
"""Hears every input with what was decided about it, once both are durable."""


def run_live(setup: LiveSetup, watchers: Sequence[Watcher] = ()) -> RunSummary:
    """Run a set-up to its end, or until it is interrupted, leaving everything in its run directory.

    The first SIGINT or SIGTERM lets the step in progress end, writes a checkpoint and returns; the second
    returns at once. Either way `resume_live` goes on. A UserError: the set-up cannot work; another DoraError:
    the run could not go on, with the reason; what is durable can be resumed.
    """
    raise NotImplementedError


def resume_live(run_directory: Path, watchers: Sequence[Watcher] = ()) -> RunSummary:
    """Go on with a run that was interrupted, killed or failed, as `run_live` would have."""
    raise NotImplementedError
