"""Integrity: the laws, asserted over the state of one control plane. Owns no state and changes none."""

from dora_rl.control.ledger import Phase, Trajectory
from dora_rl.control.parts import ControlParts


def check_integrity(p: ControlParts) -> None:
    """Assert the laws and that every index agrees with what it indexes."""
    for part in (p.window, p.ledger, p.fleet, p.batches):
        part.check()
    groups = p.ledger.groups.values()
    assert p.window.num_active == len(groups)
    assert p.window.num_finished == sum(group.is_finished for group in groups)
    pending = {t.id for queue in p.dispatch.pending.values() for t in queue}
    for group in groups:
        for t in group.members:
            _check_place(p, t, pending)


def _check_place(p: ControlParts, t: Trajectory, pending: set[int]) -> None:
    """Assert that a trajectory is on an instance, in a queue or ended, as its phase says."""
    if t.phase in (Phase.RUNNING, Phase.MOVING):
        assert p.fleet.get(t.instance) is not None, f"trajectory {t.id} runs nowhere"
    assert (t.phase == Phase.PENDING) == (t.id in pending), f"trajectory {t.id} is queued wrongly"
    if t.phase >= Phase.ENDED:
        assert t.instance is None, f"trajectory {t.id} ended and still holds instance {t.instance}"
