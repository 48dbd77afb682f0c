"""The number of instances of a run that goes on, changed from outside.

Whoever wants another number leaves a file in the run directory; the orchestrator, which alone writes there,
takes it up within a second, and notes it in the run's set-up and recipe, so that a resume goes on with it.
"""

import time
from pathlib import Path

import msgspec

from dora_rl.core.errors import DoraError
from dora_rl.core.recipe import Positive
from dora_rl.core.record import Record
from dora_rl.core.struct_loader import to_yaml
from dora_rl.run.resume_changes import with_instances
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import encode_setup, read_setup
from dora_rl.store.durable import write_atomically
from dora_rl.store.errors import RunError

_LOOK_EVERY_S = 1.0
_TAKEN_UP_S = 10.0
"""Seconds within which an orchestrator that works has taken a wish up."""


class ScaleWish(Record, frozen=True):
    """What somebody wants of a run."""

    instances: Positive


def wish_instances(root: Path, instances: int) -> None:
    """Have a run that goes on work with so many instances; returns when its orchestrator has heard.

    A ConfigError where the run cannot have so many, a RunError where nobody takes the wish up.
    """
    layout = LiveLayout(root=root)
    layout.read_recipe()
    with_instances(read_setup(layout.setup), instances)
    write_atomically(layout.wish, msgspec.json.encode(ScaleWish(instances=instances)))
    until = time.monotonic() + _TAKEN_UP_S
    while layout.wish.exists():
        if time.monotonic() > until:
            layout.wish.unlink(missing_ok=True)
            raise RunError(
                f"the run in {root} is not going on: nobody heard within {_TAKEN_UP_S:g} s",
                hint=f"`dora train --resume {root} --set devices.instances={instances}` goes on with so many",
            )
        time.sleep(0.05)


class Scaling:
    """Looks for wishes, and writes those that come into the run's set-up."""

    def __init__(self, layout: LiveLayout) -> None:
        self._layout = layout
        self._looked_at = 0.0
        # Of an orchestrator that is no more: who wished was told that nobody heard.
        layout.wish.unlink(missing_ok=True)

    def look(self) -> int | None:
        """The number of instances that somebody wants now; None where nobody wants another."""
        if time.monotonic() - self._looked_at < _LOOK_EVERY_S:
            return None
        self._looked_at = time.monotonic()
        try:
            wish = msgspec.json.decode(self._layout.wish.read_bytes(), type=ScaleWish)
            # The one on the disk, which may have been moved and edited since this process began.
            changed = with_instances(read_setup(self._layout.setup), wish.instances)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, DoraError):
            # Whoever wishes checks it first: what is wrong here was not written by `wish_instances`.
            self._layout.wish.unlink(missing_ok=True)
            return None
        write_atomically(self._layout.recipe, to_yaml(changed.recipe).encode())
        write_atomically(self._layout.setup, encode_setup(changed))
        self._layout.wish.unlink(missing_ok=True)
        return wish.instances
