"""Outcomes: how a trajectory ends when it is not trained on. Each has a name and is counted.

Owns no state: takes requests off their instances, and has the ledger and the window count them.
"""

from dora_rl.control.environments import Environments
from dora_rl.control.ledger import Group, Trajectory
from dora_rl.control.parts import ControlParts
from dora_rl.core.decisions import Abort, Close


class Outcomes:
    """Takes trajectories off instances and closes them in counted outcomes."""

    def __init__(self, parts: ControlParts, environments: Environments) -> None:
        self._p = parts
        self._environments = environments

    def take_off(self, t: Trajectory, reason: str, *, gone: int | None = None) -> None:
        """Abort a trajectory's request on the instances it may be on; of a moving one, source and target."""
        for instance in (self._p.dispatch.moving.get(t.id), t.instance):
            if instance is not None and instance != gone:
                self._p.emit(Abort(instance=instance, trajectory=t.id, reason=reason))
        self._p.dispatch.release(t)

    def close(self, group: Group, members: list[Trajectory], outcome: str) -> None:
        """Abort these members of a group and close them in `outcome`."""
        for t in members:
            self.take_off(t, outcome)
            self._environments.ended(t)
            self._p.ledger.close(group, t, outcome)
        if members:
            self._p.emit(Close(group=group.id, members=tuple(t.id for t in members), outcome=outcome))

    def close_group(self, group: Group, outcome: str) -> None:
        """Close every member left of a group in `outcome`: no step will train on it."""
        self.close(group, group.left(), outcome)
        self._p.ledger.forget(group)
        self._p.durations.forget(group.id)
        self._p.rounds.forget(group.id)
        if not group.is_evaluation:
            self._p.window.close(group.version, finished=group.is_finished)
