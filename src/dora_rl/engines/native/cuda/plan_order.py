"""What a plan must come behind, when versions run on lanes of their own and plans overlap.

- A plan with moves or entrants comes behind everything, and everything later behind it.
- The steps of one version follow one another, whichever lanes they are on.
- A block that changes hands comes behind the last step of the version that had it: a step planned ahead may
  still write there for a request that is over.

Knows lanes by name only; whoever asks lets them wait.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from dora_rl.engines.native.scheduling.step_plan import Plan

LaneT = TypeVar("LaneT", bound=Hashable)


class PlanOrder(Generic[LaneT]):
    """Which launched plans the next one must wait for, by lane."""

    def __init__(self, lanes: Iterable[LaneT]) -> None:
        self._lanes = list(lanes)
        self._version_of_block: dict[int, int | None] = {}
        """The version whose sequence each block was given to last."""
        self._lane_of_version: dict[int, LaneT] = {}
        """The lane of each version's last step."""
        self._barrier = self._lanes[0]
        self._behind_barrier = set(self._lanes)
        """Lanes that wait already for the last plan that concerned everybody."""

    def put(self, plan: Plan, lane: LaneT) -> set[LaneT]:
        """The lanes whose last plan the next one on `lane` must wait for."""
        concerns_all = bool(plan.moves or plan.entrants) or plan.version is None
        waits = set(self._lanes) if concerns_all else set()
        if lane not in self._behind_barrier:
            waits.add(self._barrier)
            self._behind_barrier.add(lane)
        waits |= self._letting_go(plan)
        if plan.version is not None:
            waits.add(self._lane_of_version.get(plan.version, lane))
            self._lane_of_version[plan.version] = lane
        if concerns_all:
            self._barrier, self._behind_barrier = lane, {lane}
        return waits - {lane}

    def forget(self, version: int) -> None:
        """Forget a version that is dropped."""
        self._lane_of_version.pop(version, None)

    def _letting_go(self, plan: Plan) -> set[LaneT]:
        """Lanes of the versions that had the plan's new blocks until now."""
        if not plan.tables:
            return set()
        entering = {entrant.slot: entrant.version for entrant in plan.entrants}
        owners = {
            block: entering.get(table.slot, plan.version) for table in plan.tables for block in table.blocks
        }
        before = {self._version_of_block.get(block) for block in owners}
        self._version_of_block.update(owners)
        return {lane for version, lane in self._lane_of_version.items() if version in before}
