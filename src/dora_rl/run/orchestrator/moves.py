"""Moves in progress: a request leaves its source with its tokens, and its KV where it is worth it.

    Move ──> ExportRequest ──> RequestExported ──┬─ with KV ──> ImportRequest ──> RequestImported ──> Moved
                                                 └─ without ──> StartRequest behind its tokens ─────> Moved

If it ended before it could leave, nothing more comes of the move. KV travels through files in memory.
"""

import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from msgspec import Struct, field

from dora_rl.core import inputs as told
from dora_rl.core.decisions import Move
from dora_rl.core.inputs import Input
from dora_rl.run import messages as say
from dora_rl.run.orchestrator.instances import Instances
from dora_rl.run.orchestrator.requests import Placed, Requests


class UnderWay(Struct, kw_only=True):
    """One move."""

    move: Move
    path: Path | None
    kv_bytes: int = 0


class Left(Struct, kw_only=True):
    """What follows from a request that left its source."""

    inputs: list[Input] = field(default_factory=list)
    after: Callable[[], None] = lambda: None


class Moves:
    """All moves of a run."""

    def __init__(
        self, run_directory: Path, instances: Instances, requests: Requests, go_on: Callable[[int, int], None]
    ) -> None:
        self._instances = instances
        self._requests = requests
        self._go_on = go_on
        self._under_way: dict[int, UnderWay] = {}
        memory = Path("/dev/shm")
        name = f"dora-kv-{sha256(str(run_directory.resolve()).encode()).hexdigest()[:16]}"
        self._directory = (memory if memory.is_dir() else run_directory) / name
        # What a crash left behind belongs to requests that are no more.
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(mode=0o700)

    def begin(self, move: Move) -> None:
        """Ask the source for it, unless it ended or was lost meanwhile."""
        placed = self._requests.of(move.trajectory)
        if placed is None or placed.instance != move.source:
            return
        path = self._directory / f"{placed.number}" if move.with_kv else None
        self._under_way[move.trajectory] = UnderWay(move=move, path=path)
        command = say.ExportRequest(request=placed.number, path=str(path) if path else None)
        self._instances.send(move.source, command)

    def left(self, placed: Placed, kv_bytes: int, at: float) -> Left:
        """It is out of its source, and its tokens are in its draft."""
        found = self._under_way.get(placed.trajectory)
        if found is None:
            return Left()
        found.kv_bytes = kv_bytes
        if not self._instances.has_joined(found.move.target):
            self._requests.forget(placed.trajectory)
            self.forget(placed.trajectory)
            return Left(
                inputs=[told.MoveFailed(at=at, trajectory=placed.trajectory, reason="its target is gone")]
            )
        arriving = self._requests.place(placed.trajectory, found.move.target, is_arriving=True)
        if found.path is not None:
            return Left(after=lambda: self._send(arriving, found))
        return Left(
            inputs=self.arrived(arriving, at),
            after=lambda: self._go_on(arriving.trajectory, arriving.number),
        )

    def _send(self, arriving: Placed, found: UnderWay) -> None:
        # It may have been aborted by what was decided since.
        if self._requests.of(arriving.trajectory) is arriving:
            command = say.ImportRequest(request=arriving.number, path=str(found.path))
            self._instances.send(arriving.instance, command)

    def arrived(self, placed: Placed, at: float) -> list[Input]:
        """Its target has it."""
        placed.is_arriving = False
        found = self.forget(placed.trajectory)
        if found is None:
            return []
        move = found.move
        return [
            told.Moved(
                at=at,
                trajectory=move.trajectory,
                source=move.source,
                target=move.target,
                kv_bytes=found.kv_bytes,
            )
        ]

    def forget(self, trajectory: int) -> UnderWay | None:
        """Nothing more comes of this move."""
        found = self._under_way.pop(trajectory, None)
        if found is not None and found.path is not None:
            found.path.unlink(missing_ok=True)
        return found

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
