"""Dispatch: puts requests on instances and takes them off again.

Owns the queues of pinned requests that wait for a place. Changes the fleet and emits a decision for
each change; decides nothing about admission, batches or versions.
"""

from collections.abc import Callable

from dora_rl.control.estimates import Estimates
from dora_rl.control.fleet import Fleet, Instance, State
from dora_rl.control.ledger import Ledger, Phase, Trajectory
from dora_rl.control.meters import Meters
from dora_rl.control.pending_requests import PendingRequests
from dora_rl.core.decisions import Abort, Decision, Evict, Move, Park, Resume, Start

Emit = Callable[[Decision], None]


class Dispatch:
    """Starts, moves, parks and releases requests on the instances of the fleet."""

    def __init__(
        self,
        ledger: Ledger,
        fleet: Fleet,
        estimates: Estimates,
        meters: Meters,
        emit: Emit,
        *,
        queues: bool,
        kv_reuse: bool,
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._estimates = estimates
        self._meters = meters
        self._emit = emit
        self._queues = queues
        self._kv_reuse = kv_reuse
        self._turn = 0
        self.moving: dict[int, int] = {}
        self.pending: dict[int, PendingRequests] = {}
        self._overrides: int | None = None
        """Schedule `partial`: requests go on under this version, whatever version they were pinned to."""

    # --- looking for a place ---

    def place_for(self, version: int, prompt_tokens: int, *, together: int = 1) -> Instance | None:
        """The instance on which a request of this version would start now; None if none has room.

        It has room for as many of them as have to start `together`.
        """
        if not self._queues:
            return self._dealt(version)
        instance = self._fleet.roomiest(version, prompt_tokens)
        if instance is None or self._fleet.has_room(instance, prompt_tokens, together=together):
            return instance
        return None

    def can_take(self, instance: Instance, t: Trajectory) -> bool:
        """Whether a request may be put on this instance now."""
        return not self._queues or self._fleet.has_room(instance, t.prompt_tokens + t.tokens)

    def has_slot(self, instance: Instance) -> bool:
        """Whether this instance could decode one more request; without queues it is given any number."""
        return not self._queues or instance.has_slot()

    def place(self, t: Trajectory, *, is_back: bool = False, near: Instance | None = None) -> None:
        """Start a pinned request where there is room, or let it wait: if it `is_back`, before new ones.

        If there is room `near` where it was, there: its engine may have kept what it begins with.
        """
        if self._overrides is not None:
            self._repin(t, self._overrides)
        tokens = t.prompt_tokens + t.tokens
        can_stay = near is not None and self._queues and t.version in near.cohorts
        if near is not None and can_stay and self._fleet.has_room(near, tokens):
            instance: Instance | None = near
        else:
            instance = self.place_for(t.version, tokens)
        if instance is not None:
            self.start(t, instance)
        else:
            self.pending.setdefault(t.version, PendingRequests()).add(t, is_back=is_back)

    def fill(self, instance: Instance) -> None:
        """Give an instance with room the requests that wait for its versions, oldest version first."""
        for version in sorted(instance.cohorts):
            queue = self.pending.get(version)
            while queue and self.can_take(instance, queue.next):
                self.start(queue.take(), instance)

    def fill_version(self, version: int) -> None:
        """Start requests of one version that wait for a place, while instances have room for them."""
        queue = self.pending.get(version)
        while queue:
            instance = self.place_for(version, queue.next.prompt_tokens + queue.next.tokens)
            if instance is None:
                return
            self.start(queue.take(), instance)

    # --- putting on and taking off ---

    def start(self, t: Trajectory, instance: Instance) -> None:
        """Put a request on an instance and emit its `Start`."""
        group = self._ledger.group_of(t.id)
        assert group is not None, f"trajectory {t.id} belongs to no group"
        if t.tokens and not instance.spec.continues:
            t.tokens, t.attempt = 0, t.attempt + 1
        t.phase = Phase.RUNNING
        instance.add(t)
        self._fleet.touch(instance)
        prompt = group.prompt
        self._estimates.prefills(t.prompt_tokens + t.tokens)
        self._emit(
            Start(
                instance=instance.id,
                version=t.version,
                trajectory=t.id,
                group=group.id,
                epoch=prompt.epoch,
                row=prompt.row,
                member=t.member,
                attempt=t.attempt,
                prompt_tokens=t.prompt_tokens,
                generated_tokens=t.tokens,
                evaluation=group.is_evaluation,
                question=group.question,
            )
        )

    def release(self, t: Trajectory) -> None:
        """Take a request off its instance, if it is on one, or out of its queue."""
        instance = self._fleet.get(t.instance)
        if t.id in self.moving:
            self._arrived(t)
        if instance is not None:
            instance.remove(t)
            self._fleet.touch(instance)
        elif t.phase == Phase.PENDING and t.version in self.pending:
            self.pending[t.version].remove(t)
        t.instance, t.is_parked = None, False

    def move(self, t: Trajectory, target: Instance, now: float) -> None:
        """Send a request to another instance of its version, as far as the two engines can."""
        source = self._fleet.get(t.instance)
        assert source is not None, f"trajectory {t.id} is nowhere"
        assert t.version in target.cohorts, f"instance {target.id} does not serve version {t.version}"
        with_kv = self._kv_reuse and source.spec.moves_kv and target.spec.moves_kv
        if not (with_kv or target.spec.continues):
            self._start_again(t, source, target)
            return
        source.remove(t)
        waiting = t.phase == Phase.WAITING
        t.phase = Phase.WAITING if waiting else Phase.MOVING
        target.add(t)
        self._fleet.touch(source)
        self._fleet.touch(target)
        self.moving[t.id] = source.id
        target.arriving += 1
        self._estimates.move_began(t.id, now)
        self._meters.migrations += 1
        if with_kv:
            self._estimates.copies(2 * (t.prompt_tokens + t.tokens))
        self._emit(
            Move(trajectory=t.id, version=t.version, source=source.id, target=target.id, with_kv=with_kv)
        )

    def _start_again(self, t: Trajectory, source: Instance, target: Instance) -> None:
        """Restart a request on the target, same version, when neither its KV nor its tokens can move."""
        if t.phase == Phase.WAITING:
            # Its environment has the turn: it finds a place, and begins anew, when that replies.
            self.evict(t, source)
            return
        self._emit(Abort(instance=source.id, trajectory=t.id, reason="its engine cannot move it"))
        self.release(t)
        self._meters.restarted_trajectories += 1
        t.tokens, t.attempt = 0, t.attempt + 1
        self.start(t, target)

    def moved(self, t: Trajectory) -> None:
        """A request has arrived on its new instance."""
        self._arrived(t)
        if t.phase == Phase.MOVING:
            t.phase = Phase.RUNNING

    def park(self, t: Trajectory, instance: Instance) -> None:
        """Let the instance take this request's KV to host memory until it has room again."""
        self._meters.parked += 1
        self._emit(Park(instance=instance.id, trajectory=t.id))

    def park_turn(self, t: Trajectory, instance: Instance) -> None:
        """Take the KV of a request that waits for its environment to host memory, until that replies."""
        instance.remove(t)
        t.is_parked = True
        instance.add(t)
        self._fleet.touch(instance)
        self._estimates.copies(t.prompt_tokens + t.tokens)
        self.park(t, instance)

    def evict(self, t: Trajectory, instance: Instance) -> None:
        """Drop the KV of a request that waits for its environment: nothing decodes slower for it."""
        instance.remove(t)
        t.is_parked = False
        self._fleet.touch(instance)
        self._meters.evicted += 1
        self._emit(Evict(instance=instance.id, trajectory=t.id))

    def wait(self, t: Trajectory, tokens: int) -> None:
        """A request waits for its environment; its `tokens` of KV stay on its instance or finish moving."""
        instance = self._fleet.get(t.instance)
        assert instance is not None, f"trajectory {t.id} waits nowhere"
        instance.remove(t)
        t.tokens, t.phase = tokens, Phase.WAITING
        instance.add(t)
        self._fleet.touch(instance)

    def resume(self, t: Trajectory, appended_tokens: int) -> None:
        """Continue a request whose environment replied: on the instance with its KV, else on any."""
        instance = self._fleet.get(t.instance)
        if instance is None:
            t.tokens += appended_tokens
            t.phase = Phase.PENDING
            self.place(t, is_back=True)
            return
        instance.remove(t)
        if t.is_parked:
            self._estimates.copies(t.prompt_tokens + t.tokens)
            t.is_parked = False
        t.tokens += appended_tokens
        t.phase = Phase.MOVING if t.id in self.moving else Phase.RUNNING
        instance.add(t)
        self._fleet.touch(instance)
        self._estimates.prefills(appended_tokens)
        self._emit(Resume(instance=instance.id, trajectory=t.id, appended_tokens=appended_tokens))

    def requeue(self, t: Trajectory, *, keeps_tokens: bool) -> None:
        """Put a request whose instance is gone first in its version's queue, with or without its tokens."""
        self._meters.restarted_trajectories += 1
        t.instance, t.is_parked = None, False
        if not keeps_tokens:
            t.tokens = 0
            t.attempt += 1
        if not keeps_tokens or t.phase != Phase.WAITING:
            t.phase = Phase.PENDING
            self.pending.setdefault(t.version, PendingRequests()).put_first(t)

    def repin(self, version: int) -> None:
        """Schedule `partial`: every request that waits for a place goes on under `version`."""
        self._overrides = version
        waiting = [t for queue in self.pending.values() for t in queue]
        for t in waiting:
            self._repin(t, version)
        self.pending = {version: PendingRequests(waiting)}

    def num_pending(self, version: int) -> int:
        return len(self.pending.get(version, ()))

    # --- inside ---

    @staticmethod
    def _repin(t: Trajectory, version: int) -> None:
        if t.tokens and t.version != version:
            t.segments = (*t.segments, (version, t.tokens))
        t.version = version

    def _arrived(self, t: Trajectory) -> None:
        """Stop counting a request as on its way, whether it arrived or not."""
        instance = self._fleet.get(t.instance)
        if self.moving.pop(t.id, None) is not None and instance is not None:
            instance.arriving -= 1

    def _dealt(self, version: int) -> Instance | None:
        """Batch scheduling: the next instance in turn that serves `version`, whether or not it has room."""
        serving = [i for i in self._fleet.serving(version) if i.state is State.UP]
        if not serving:
            return None
        self._turn += 1
        return serving[self._turn % len(serving)]
