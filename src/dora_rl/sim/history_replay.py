"""Replays of event logs: the inputs of a recorded run, fed through the control plane again."""

from dora_rl.control.plane import ControlPlane
from dora_rl.control.replay import Replay, replay
from dora_rl.core.errors import UserError
from dora_rl.core.history import History
from dora_rl.core.recipe import Recipe
from dora_rl.sim.simulated_run import build_world


def replay_history(history: History) -> Replay:
    """Replay an event log through a fresh control plane, and compare the decisions."""
    return replay(_fresh_plane(history.recipe), history)


def _fresh_plane(recipe: Recipe) -> ControlPlane:
    """The control plane as it was before the run's first input."""
    if recipe.simulation.estimates == "oracle":
        raise UserError(
            "a run with simulation.estimates = 'oracle' cannot be replayed: "
            "its control plane knew lengths that its event log does not hold",
            hint="record one with estimates=learned",
        )
    return build_world(recipe).plane
