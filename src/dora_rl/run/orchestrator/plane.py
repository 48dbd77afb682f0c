"""The control plane of a live run, and the replay of its event log."""

from pathlib import Path

from dora_rl.control.estimates import Estimates, LearnedLengths
from dora_rl.control.plane import ControlPlane
from dora_rl.control.replay import Replay, replay
from dora_rl.core.history import History
from dora_rl.run.layout import LiveLayout
from dora_rl.run.setup import RunSetup, read_setup

_LOAD_S, _MOVE_S, _STEP_S = 1.0, 0.1, 0.02
"""What is believed before anything was seen."""


def make_plane(setup: RunSetup) -> ControlPlane:
    """As it is before the first input: a function of the set-up alone."""
    lengths = LearnedLengths(prior_tokens=setup.max_new_tokens / 8, max_tokens=setup.max_new_tokens)
    return ControlPlane(
        setup.recipe.control,
        setup.recipe.batch,
        steps=setup.recipe.steps,
        estimates=Estimates(lengths=lengths, load_s=_LOAD_S, move_s=_MOVE_S, step_s=_STEP_S),
    )


def replay_live(run_directory: Path) -> Replay:
    """Whether control, told what a live run was told, decides the same."""
    layout = LiveLayout(root=run_directory)
    plane = make_plane(read_setup(layout.setup))
    return replay(plane, History(layout.events))
