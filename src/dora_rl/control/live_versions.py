"""Versions: which are alive, and when their weights may go."""

from dora_rl.control.dispatch import Dispatch, Emit
from dora_rl.control.fleet import Fleet
from dora_rl.control.ledger import Ledger
from dora_rl.control.window import Window
from dora_rl.core.decisions import Retire


class Versions:
    """The published versions that somebody may still use."""

    def __init__(self, window: Window, ledger: Ledger, fleet: Fleet, dispatch: Dispatch, emit: Emit) -> None:
        self._window = window
        self._ledger = ledger
        self._fleet = fleet
        self._dispatch = dispatch
        self._emit = emit
        self._live = {0}

    def are_live(self, version: int) -> bool:
        return version in self._live

    def publish(self, version: int) -> None:
        self._live.add(version)

    def retire(self) -> None:
        """A version that is not the newest goes when no group, evaluation or instance uses it."""
        for version in sorted(self._live - {self._window.newest}):
            if not self._is_used(version):
                self._live.discard(version)
                self._fleet.forget(version)
                self._dispatch.pending.pop(version, None)
                self._emit(Retire(version=version))

    def _is_used(self, version: int) -> bool:
        return bool(
            self._window.active(version)
            or self._dispatch.num_pending(version)
            or self._fleet.uses(version)
            or any(group.version == version for group in self._ledger.evaluating.values())
        )
