"""Batches: which finished groups the next train step takes, whole or one by one.

Owns the open batch. Applies the window's rule and oldest-first order; knows no trajectories' places
and no clock.
"""

from dora_rl.control.ledger import Group, Ledger
from dora_rl.control.window import Window


class Batches:
    """Collects exactly B groups for each train step."""

    def __init__(self, window: Window, ledger: Ledger, *, streams: bool) -> None:
        self._window = window
        self._ledger = ledger
        self._streams = streams
        self._open: dict[int, Group] = {}

    def hand_over(self) -> list[Group]:
        """Streaming: finished groups that may join the open batch now, oldest first.

        A group joins only if everything the batch is still forced to hold fits beside it.
        """
        if not self._streams:
            return []
        handed = []
        for group in self._waiting():
            if len(self._open) == self._window.batch_groups:
                break
            if self._fits(group):
                self._open[group.id] = group
                handed.append(group)
        return handed

    def allows(self, version: int) -> bool:
        """Whether a group of `version` may start without forcing the open batch to hold more than fits."""
        left = self._window.batch_groups - len(self._open)
        return not self._open or all(
            self._window.forced(w, extra=1) - self._held(w) <= left
            for w in range(version, self._window.newest)
        )

    def holds(self, group: Group) -> bool:
        """Whether this group was handed over to the open batch."""
        return group.id in self._open

    def take(self) -> list[Group]:
        """Close the batch: its groups leave the active ones and go into training."""
        missing = self._window.batch_groups - len(self._open)
        if self._open:
            batch = [*self._open.values(), *self._waiting()[:missing]]
            self._ledger.train(batch)
        else:
            batch = self._ledger.take(missing)
        self._open = {}
        self._window.take(group.version for group in batch)
        return batch

    def give_back(self) -> list[Group]:
        """Return the groups of a lost train step to the active ones, finished: a later batch takes them."""
        returned = self._ledger.give_back()
        self._window.give_back(group.version for group in returned)
        self._open = {}
        return returned

    def reopen(self) -> None:
        """Empty the open batch after the idle trainer lost the groups it was handed."""
        self._open = {}

    def check(self) -> None:
        assert len(self._open) <= self._window.batch_groups
        assert all(group.is_finished and key in self._ledger.groups for key, group in self._open.items())

    def _waiting(self) -> list[Group]:
        """Finished groups outside the open batch, oldest first."""
        return [group for group in self._ledger.finished() if group.id not in self._open]

    def _fits(self, group: Group) -> bool:
        """Whether the open batch can take `group` and still everything it is forced to hold."""
        left = self._window.batch_groups - len(self._open) - 1
        for version in self._window.live():
            if version >= group.version:
                break
            if self._window.forced(version) - self._held(version) > left:
                return False
        return True

    def _held(self, version: int) -> int:
        """Groups of version <= `version` in the open batch."""
        return sum(group.version <= version for group in self._open.values())
