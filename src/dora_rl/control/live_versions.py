"""Versions: which are alive, and when their weights may go.

Owns the set of live versions. The newest is always live, and so is one that is frozen because it plays a
role; any other stays live exactly as long as a group, an evaluation or an instance uses it, or groups of it
have still to start.
"""

from dora_rl.control.dispatch import Dispatch, Emit
from dora_rl.control.fleet import Fleet
from dora_rl.control.ledger import Ledger
from dora_rl.control.window import Window
from dora_rl.core.decisions import Retire


class LiveVersions:
    """The live versions: published, and newest or still used by a group, an evaluation or an instance."""

    def __init__(
        self,
        window: Window,
        ledger: Ledger,
        fleet: Fleet,
        dispatch: Dispatch,
        emit: Emit,
        *,
        keeps_window: bool,
        frozen: frozenset[int] = frozenset(),
    ) -> None:
        """With `keeps_window`, what the next batch may hold stays live; what is `frozen` always does."""
        self._frozen = frozen
        self._window = window
        self._keeps_window = keeps_window
        self._ledger = ledger
        self._fleet = fleet
        self._dispatch = dispatch
        self._emit = emit
        self._live = {0}

    def are_live(self, version: int) -> bool:
        """Whether `version` is live."""
        return version in self._live

    def publish(self, version: int) -> None:
        """Add a published version to the live ones."""
        self._live.add(version)

    def retire(self) -> None:
        """Retire every version but the newest that no group, evaluation or instance uses."""
        for version in sorted(self._live - self._frozen - {self._window.newest}):
            if not self._is_used(version):
                self._live.discard(version)
                self._fleet.forget(version)
                self._dispatch.pending.pop(version, None)
                self._emit(Retire(version=version))

    def _is_used(self, version: int) -> bool:
        return bool(
            (self._keeps_window and version >= self._window.oldest_allowed)
            or self._window.active(version)
            or self._dispatch.num_pending(version)
            or self._fleet.uses(version)
            or any(group.version == version for group in self._ledger.evaluating.values())
        )
