"""Admission: what starts now, on which instance.

Requests that already have a version come first, then evaluations, then new groups of the newest
version, and, where the trainer would starve, of older ones. Owns the queue of evaluations; asks the
window whether a group may start, and never starts one that the staleness bound forbids.
"""

from collections import deque
from collections.abc import Iterable

from dora_rl.control.fleet import Instance, State
from dora_rl.control.ledger import Trajectory
from dora_rl.control.parts import ControlParts
from dora_rl.core.decisions import Admit
from dora_rl.core.inputs import QueuedPrompt


class Admission:
    """Starts requests, evaluations and new groups on instances that have room."""

    def __init__(self, parts: ControlParts) -> None:
        self._p = parts
        self._evaluations: dict[int, deque[Trajectory]] = {}

    # --- filling ---

    def look_again(self) -> None:
        """Place versions anew, then start whatever has room: after a change that concerns all instances."""
        p = self._p
        p.fleet_changes.rebalance(self.waiting(), p.now)
        for version in sorted(p.dispatch.pending):
            p.dispatch.fill_version(version)
        self.fill_evaluation()
        self.admit()
        if p.control.refill:
            for instance in p.fleet:
                if p.window.newest not in instance.cohorts:
                    self.admit(refilled=instance)

    def fill(self, instance: Instance) -> None:
        """Start on an instance with room the requests that wait for its versions, then new groups."""
        if instance.state is not State.UP:
            return
        if self._p.dispatch.pending:
            self._p.dispatch.fill(instance)
        if self._evaluations:
            self.fill_evaluation()
        if self._p.window.newest in instance.cohorts:
            self.admit()
        elif self._p.control.refill:
            self.admit(refilled=instance)

    # --- groups ---

    def admit(self, *, refilled: Instance | None = None) -> None:
        """Start groups of the newest version while the target R, the bound, prompts and free slots allow.

        On a `refilled` instance: of its own older version, while the trainer would starve otherwise.
        """
        p, window = self._p, self._p.window
        version = window.newest if refilled is None else refilled.newest
        while refilled is None or self._needs_refill(refilled, version):
            active = window.num_active
            if active >= p.target.groups:
                p.target.reached()
                return
            is_wanted = active < (p.steps - window.taken) * p.batch.groups
            is_open = is_wanted and bool(p.prompts) and p.schedule.gate.is_open
            if not (is_open and window.room(version) > 0 and p.batches.allows(version)):
                return
            place: Instance | None
            if refilled is None:
                place = p.dispatch.place_for(version, p.prompts.peek().tokens)
            else:
                place = refilled if p.pace.can_finish(version, p.now) else None
            if place is None:
                return

            # The next prompt is pinned to the version, and its first member starts: one atomic act.
            # The others start beside it, or wherever there is room.
            prompt = p.prompts.take()
            window.admit(version)
            p.schedule.gate.admitted()
            group = p.ledger.admit(prompt, version)
            p.emit(Admit(group=group.id, version=version, epoch=prompt.epoch, row=prompt.row))
            first, *others = group.members
            p.dispatch.start(first, place)
            for t in others:
                if not p.control.prompt_replication and p.dispatch.can_take(place, t):
                    p.dispatch.start(t, place)
                else:
                    p.dispatch.place(t)

    def _needs_refill(self, instance: Instance, version: int) -> bool:
        """Whether the trainer would starve without more groups of an instance's own older version."""
        p = self._p
        return (
            bool(p.prompts)
            and p.fleet.has_room(instance, p.prompts.peek().tokens)
            and p.pace.would_starve(p.now)
            and p.versions.are_live(version)
            and version > p.window.oldest_allowed
        )

    @property
    def lacks_prompts(self) -> bool:
        """Whether no batch can fill without another prompt: none is queued and too few groups are active."""
        return not self._p.prompts and self._p.window.num_active < self._p.batch.groups

    # --- evaluations ---

    def evaluate(self, prompts: Iterable[QueuedPrompt]) -> None:
        """Queue evaluations of these prompts under the newest version."""
        version = self._p.window.newest
        for prompt in prompts:
            group = self._p.ledger.evaluate(prompt, version)
            self._evaluations.setdefault(version, deque()).extend(group.members)
        self.fill_evaluation()

    def fill_evaluation(self) -> None:
        """Start queued evaluations, oldest version first, within evaluation's share of the slots."""
        if not self._evaluations:
            return
        slots = sum(instance.spec.slots for instance in self._p.fleet)
        # One that lost its instance waits like the others: it must not keep them from theirs.
        groups = self._p.ledger.evaluating.values()
        num_placed = sum(t.instance is not None for group in groups for t in group.members)
        free_slots = max(1, int(self._p.control.evaluation_share * slots)) - num_placed
        for version in sorted(self._evaluations):
            queue = self._evaluations[version]
            while queue and free_slots > 0:
                place = self._p.dispatch.place_for(version, queue[0].prompt_tokens)
                if place is None:
                    break
                self._p.dispatch.start(queue.popleft(), place)
                free_slots -= 1
            if not queue:
                del self._evaluations[version]

    def waiting(self) -> dict[int, int]:
        """Number of pinned requests and evaluations without an instance, by version."""
        counts = {version: len(queue) for version, queue in self._p.dispatch.pending.items() if queue}
        for version, queue in self._evaluations.items():
            counts[version] = counts.get(version, 0) + len(queue)
        return counts
