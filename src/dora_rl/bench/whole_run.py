"""A live run that is measured: to its last step, or not at all."""

from collections.abc import Sequence
from pathlib import Path

from dora_rl.core.history import Watcher
from dora_rl.launch.local import LOCAL
from dora_rl.launch.protocol import Launch
from dora_rl.run.live_run import run_live
from dora_rl.run.run_setup import RunSetup


def run_whole(
    setup: RunSetup, inputs: Path, watchers: Sequence[Watcher] = (), *, launch: Launch = LOCAL
) -> None:
    """Run a set-up to its end, leaving everything in its run directory; an interrupt is raised.

    An interrupted run ends in order, and what was measured of half of it compares with nothing.
    """
    if not run_live(setup, inputs, watchers, launch=launch).is_complete:
        raise KeyboardInterrupt
