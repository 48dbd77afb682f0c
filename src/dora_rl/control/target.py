"""The controller for R: the smallest number of active groups that starves neither side.

The trainer does not starve if, when a step ends, a whole batch is finished. So the controller looks
at one number per publish, the groups finished at that moment, and steers it to a little over B. It
raises R at once by what was missing and lowers it by half of what was too much. After each change it
waits until groups admitted under it had time to finish, which is what keeps it from oscillating.
It raises R only while R is what holds admission back: where the instances are full, or the window
is, more active groups would not help.
"""

from dora_rl.control.window import Window


class Target:
    """The target number of active groups R: fixed, or adjusted by what is finished at each publish."""

    def __init__(self, *, window: Window, fixed: int | None) -> None:
        self._window = window
        self._is_fixed = fixed is not None
        self.groups = fixed if fixed is not None else min(2 * window.batch_groups, self._most)
        self._was_binding = False
        self._hold = 0

    def reached(self) -> None:
        """Note that the target kept a group from being admitted."""
        self._was_binding = True

    def published(self, *, was_starved: bool) -> None:
        """A step ended: adjust R by comparing the finished groups with what the next batch needs."""
        was_binding, self._was_binding = self._was_binding, False
        if self._is_fixed:
            return
        if self._hold > 0:
            self._hold -= 1
            return
        change = self._change(was_binding=was_binding, was_starved=was_starved)
        if change:
            self.groups = min(self._most, max(self._window.batch_groups, self.groups + change))
            self._hold = 1 + self.groups // self._window.batch_groups

    def _change(self, *, was_binding: bool, was_starved: bool) -> int:
        """By how much R should change to keep a margin of finished groups over B."""
        batch = self._window.batch_groups
        margin = max(1, batch // 16)
        surplus = self._window.num_finished - batch
        if surplus < margin and (was_binding or was_starved):
            return margin - surplus if was_binding else 0
        if surplus > 3 * margin:
            return -((surplus - margin) // 2)
        return 0

    @property
    def _most(self) -> int:
        """The largest useful R, (S + 1) B: more groups could not all be trained in time."""
        return (self._window.max_staleness + 1) * self._window.batch_groups


class StalenessTarget:
    """The controller for S: the smallest bound at which the window does not stall, up to a limit."""

    def __init__(self, *, window: Window, limit: int) -> None:
        self._window = window
        self._limit = limit
        self._calm = 0

    def published(self, *, stall_share: float, oldest_taken: int) -> None:
        """A step ended: adjust S.

        `stall_share` of the step was window stall; `oldest_taken` was the greatest staleness in its batch.
        """
        if stall_share > 0.02 and self._window.max_staleness < self._limit:
            self._window.loosen(self._window.max_staleness + 1)
            self._calm = 0
        elif stall_share == 0.0 and oldest_taken < self._window.max_staleness:
            self._calm += 1
        else:
            self._calm = 0
        if self._calm >= 4 and self._window.tighten(self._window.max_staleness - 1):
            self._calm = 0
