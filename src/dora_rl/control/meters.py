"""Meters: what a run is judged by, counted where it is decided.

Owns the durations of the trainer's waits by reason, the staleness of what was trained on, and counts of
moves and losses. Decides nothing, and nothing is decided by these but the controllers of R and S.
"""

from collections import Counter

from dora_rl.control.ledger import Group
from dora_rl.control.window import Verdict


class Meters:
    """Counters of one run: waits in seconds, staleness, moves, version changes, losses."""

    def __init__(self) -> None:
        self.waited_s = {Verdict.STARVED: 0.0, Verdict.WINDOW: 0.0, Verdict.PROMPTS: 0.0}
        self.staleness: Counter[int] = Counter()
        self.migrations = 0
        self.kv_bytes_moved = 0
        self.version_changes = 0
        self.parked = 0
        self.evicted = 0
        self.mixed_trajectories = 0
        self.truncated = 0
        self.failed_openings = 0
        """Prompts that were dropped because their environments could not be reset."""
        self.cut = 0
        """Episodes that were ended because the trainer waited for nothing but environments."""
        self.instance_losses = 0
        self.restarted_trajectories = 0
        self._waiting: Verdict | None = None
        self._since = 0.0

    def wait(self, reason: Verdict | None, now: float) -> bool:
        """Note that the trainer waits for `reason` from now on (None: not at all); True if that changed."""
        if self._waiting is not None:
            self.waited_s[self._waiting] += now - self._since
        changed = reason is not self._waiting
        self._waiting, self._since = reason, now
        return changed

    def took(self, batch: list[Group], staleness: tuple[int, ...], now: float) -> None:
        """Count a batch that was taken: its staleness, its mixed trajectories, the end of the wait."""
        self.wait(None, now)
        self.staleness.update(staleness)
        self.mixed_trajectories += sum(t.is_mixed for group in batch for t in group.left())

    @property
    def starved_s(self) -> float:
        """Seconds the trainer waited with fewer than B groups finished."""
        return self.waited_s[Verdict.STARVED]

    @property
    def window_stall_s(self) -> float:
        """Seconds the trainer waited, with B groups finished, for unfinished ones near their deadline."""
        return self.waited_s[Verdict.WINDOW]

    @property
    def prompts_wait_s(self) -> float:
        """Seconds the trainer waited for prompts that the source had not offered."""
        return self.waited_s[Verdict.PROMPTS]
