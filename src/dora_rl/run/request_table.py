"""Which request is where, what exists of every trajectory in progress, and which requests are moving.

A request's number is given at its Start and never again, so a late word about an earlier one finds nothing
here and is dropped. What exists of a trajectory outlives its requests: from that it goes on elsewhere.

    Move ──> ExportRequest ──> RequestExported ──┬─ with KV ──> ImportRequest ──> RequestImported ──> Moved
                                                 └─ without ──> StartRequest behind its tokens ─────> Moved

If a request ended before it could leave, nothing more comes of its move. KV travels through files in memory.
"""

import shutil
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from msgspec import Struct, field

from dora_rl.core import inputs as told
from dora_rl.core.decisions import Move, Start
from dora_rl.core.errors import UserError
from dora_rl.engines.requests import Sampling, StreamKey
from dora_rl.run import messages as say
from dora_rl.run.instances import InstancePool
from dora_rl.run.received import ContinueRequest, DeliverKv, Received


class PartialTrajectory(Struct, kw_only=True):
    """What exists of a trajectory that is being generated."""

    start: Start
    """The newest Start of the trajectory, which names its prompt and its random stream."""
    tokens: list[int] = field(default_factory=list)
    """Tokens behind the prompt; of an episode, those of the branch whose turn it is."""
    episode_turn: "EpisodeTurn | None" = None
    """The turn that is, or was last, generated of an episode; None of a row with one response."""
    role_turn: "RoleTurn | None" = None
    """The turn of a role that it is; None of what the policy says."""

    @property
    def attempt(self) -> int:
        return self.start.attempt

    @property
    def num_tokens(self) -> int:
        """Number of tokens of prompt and response; of an episode, of the branch whose turn it is."""
        turn = self.episode_turn
        if turn is None:
            return self.start.prompt_tokens + len(self.tokens)
        return len(turn.prompt) - turn.in_prompt + len(self.tokens)


class EpisodeTurn(Struct, kw_only=True):
    """A turn of an episode as requests need it."""

    branch: int
    prompt: tuple[int, ...]
    in_prompt: int
    """How many of the tokens are the prompt: of a branch that does not begin with its group's."""
    asked_at: int
    """Where the environment's tokens before the turn begin."""
    begin: int
    """Where the turn's own tokens begin."""
    limit: int
    """Most tokens of the turn."""
    stop: tuple[str, ...]
    """Strings at which the turn ends, beside the recipe's."""
    is_over: bool
    """Whether the turn ended and the environment has the word."""


class RoleTurn(Struct, frozen=True, kw_only=True):
    """A turn of a role that a frozen version plays, as requests need it. Nothing of it is journalled."""

    question: int
    prompt: tuple[int, ...]
    key: StreamKey
    limit: int
    """Most tokens of the turn."""
    sampling: Sampling
    deadline: int
    """The batch that whoever awaits it has to be in: its own, not the version's that plays the role."""


class PlacedRequest(Struct, kw_only=True):
    """A request on an instance, or on its way there."""

    number: int
    trajectory: int
    instance: int
    is_held: bool = False
    """Whether it is between turns of an episode, its KV kept."""


class RequestTable:
    """All requests of a run, and the trajectories they belong to."""

    def __init__(self, unfinished: Iterable[PartialTrajectory] = ()) -> None:
        """`unfinished`: trajectories that were cut short together with the run."""
        self.partial = {each.start.trajectory: each for each in unfinished}
        """Trajectories in progress, by trajectory, until they end or are closed."""
        self._placed: dict[int, PlacedRequest] = {}
        self._of_trajectory: dict[int, PlacedRequest] = {}
        self._next = 0

    def place(self, trajectory: int, instance: int) -> PlacedRequest:
        """Give a trajectory a request on an instance; an earlier request is forgotten."""
        self.forget(trajectory)
        placed = PlacedRequest(number=self._next, trajectory=trajectory, instance=instance)
        self._next += 1
        self._placed[placed.number] = self._of_trajectory[trajectory] = placed
        return placed

    def find(self, number: int, instance: int) -> PlacedRequest | None:
        """The request an instance speaks of, or None if it is no longer there."""
        placed = self._placed.get(number)
        return placed if placed is not None and placed.instance == instance else None

    def of(self, trajectory: int) -> PlacedRequest | None:
        """The request of a trajectory, or None if it has none."""
        return self._of_trajectory.get(trajectory)

    def on(self, instance: int) -> Iterator[PlacedRequest]:
        """The requests on an instance, as a copy: they may be forgotten while it is read."""
        return (placed for placed in list(self._placed.values()) if placed.instance == instance)

    def forget(self, trajectory: int) -> None:
        """Forget the request of a trajectory; what exists of the trajectory stays."""
        placed = self._of_trajectory.pop(trajectory, None)
        if placed is not None:
            del self._placed[placed.number]

    def turn_ended(self, placed: PlacedRequest, *, is_held: bool) -> PartialTrajectory:
        """Note that a turn of an episode is over; its request stays if its KV is held."""
        partial = self.partial[placed.trajectory]
        assert partial.episode_turn is not None, f"trajectory {placed.trajectory} has no turn"
        partial.episode_turn.is_over = True
        placed.is_held = is_held
        if not is_held:
            self.forget(placed.trajectory)
        return partial

    def begin(self, start: Start) -> PlacedRequest:
        """Note that a trajectory starts, and give it a request; of an earlier attempt nothing is kept."""
        partial = self.partial.get(start.trajectory)
        if partial is None or partial.attempt != start.attempt:
            partial = self.partial[start.trajectory] = PartialTrajectory(start=start)
        partial.start = start
        return self.place(start.trajectory, start.instance)


class MoveInProgress(Struct, kw_only=True):
    """A decided move whose request has not arrived yet."""

    decision: Move
    path: Path | None
    """The file that the request's KV travels through; None for a move without KV."""
    kv_bytes: int = 0


class RequestMoves:
    """Moves of requests between instances, and the files their KV travels through."""

    def __init__(self, run_directory: Path, instances: InstancePool, requests: RequestTable) -> None:
        self._instances = instances
        self._requests = requests
        self._in_progress: dict[int, MoveInProgress] = {}
        memory = Path("/dev/shm")
        name = f"dora-kv-{sha256(str(run_directory.resolve()).encode()).hexdigest()[:16]}"
        self._directory = (memory if memory.is_dir() else run_directory) / name
        # What a crash left behind belongs to requests that are no more.
        shutil.rmtree(self._directory, ignore_errors=True)
        try:
            self._directory.mkdir(mode=0o700)
        except OSError as error:
            raise UserError(
                f"requests cannot move through {self._directory}: {error.strerror}",
                hint="remove it, if nothing else uses it; `dora doctor` looks at shared memory",
            ) from error

    def begin(self, decision: Move) -> None:
        """Ask the source instance to export a request, unless it ended or was lost meanwhile."""
        placed = self._requests.of(decision.trajectory)
        if placed is None or placed.instance != decision.source:
            return
        path = self._directory / f"{placed.number}" if decision.with_kv else None
        self._in_progress[decision.trajectory] = MoveInProgress(decision=decision, path=path)
        command = say.ExportRequest(request=placed.number, path=str(path) if path else None)
        self._instances.send(decision.source, command)

    def left(self, placed: PlacedRequest, kv_bytes: int, at: float) -> Received:
        """Send a request on to its target: it is out of its source, and all its tokens are known."""
        key = placed.trajectory
        move = self._in_progress.get(key)
        if move is None:
            return Received()
        move.kv_bytes = kv_bytes
        target = move.decision.target
        if not self._instances.has_joined(target):
            self.forget_request(key)
            return Received(inputs=[told.MoveFailed(at=at, trajectory=key, reason="its target is gone")])
        was_held, arriving = placed.is_held, self._requests.place(key, target)
        go_on = ContinueRequest(trajectory=key, request=arriving.number)
        if move.path is not None:
            arriving.is_held = was_held
            deliver = DeliverKv(instance=target, request=arriving.number, path=str(move.path))
            # The environment may have replied while the request was on its way out.
            return Received(effects=[deliver, go_on] if was_held else [deliver])
        return Received(inputs=self.arrived(arriving, at), effects=[go_on])

    def arrived(self, placed: PlacedRequest, at: float) -> list[told.Input]:
        """Note that the target instance has the request."""
        move = self.forget(placed.trajectory)
        if move is None:
            return []
        decision = move.decision
        return [
            told.Moved(
                at=at,
                trajectory=decision.trajectory,
                source=decision.source,
                target=decision.target,
                kv_bytes=move.kv_bytes,
            )
        ]

    def forget(self, trajectory: int) -> MoveInProgress | None:
        """Drop the move of a trajectory, if there is one, with its file."""
        move = self._in_progress.pop(trajectory, None)
        if move is not None and move.path is not None:
            move.path.unlink(missing_ok=True)
        return move

    def forget_request(self, trajectory: int) -> None:
        """Drop the request of a trajectory, wherever it was or was going to."""
        self._requests.forget(trajectory)
        self.forget(trajectory)

    def forget_instance(self, instance: int) -> None:
        """Drop all requests of an instance that is gone; what is journalled of them stays."""
        for placed in self._requests.on(instance):
            self.forget_request(placed.trajectory)

    def close(self) -> None:
        """Remove the files that KV of moving requests travels through."""
        shutil.rmtree(self._directory, ignore_errors=True)
