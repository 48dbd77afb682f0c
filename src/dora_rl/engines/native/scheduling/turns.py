"""Whose version computes next?

A step runs one version's weights, so versions take turns: in a round every version with work has one turn,
the most urgent first. No version waits for more than one turn of each other version in a round.
"""

from collections.abc import Collection, Mapping

Priority = tuple[int, int]
"""Deadline, then order of submission; lower goes first."""


class VersionTurns:
    """Which versions had their turn in the round in progress."""

    def __init__(self) -> None:
        self._had_turn: set[int] = set()

    def next_turn(self, most_urgent: Mapping[int, Priority]) -> int:
        """The version to run, given the most urgent request of each version with work."""
        due = most_urgent.keys() - self._had_turn
        if not due:
            self._had_turn.clear()
            due = set(most_urgent)
        version = min(due, key=lambda version: (most_urgent[version], version))
        self._had_turn.add(version)
        return version

    def is_over(self, with_work: Collection[int]) -> bool:
        """Whether each of these versions had its turn in this round."""
        return self._had_turn.issuperset(with_work)
