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
            self._refill(instance)

    def fill_everything(self) -> None:
        """Start on all instances whatever has room now: waiting requests, evaluations, new groups."""
        for version in sorted(self._p.dispatch.pending):
            self._p.dispatch.fill_version(version)
        self.fill_evaluation()
        self.admit()
        if self._p.control.refill:
            for instance in self._p.fleet:
                if self._p.window.newest not in instance.cohorts:
                    self._refill(instance)

    # --- groups ---

    def admit(self) -> None:
        """Start groups of the newest version while the bound, the target R and free slots allow."""
        version = self._p.window.newest
        while self._may_admit(version):
            place = self._p.dispatch.place_for(version, self._p.prompts.peek().tokens)
            if place is None:
                return
            self._start_group(version, place)

    def planned_groups(self) -> int:
        """Number of groups of the newest version that the bound and the target R would let start now."""
        window = self._p.window
        return max(0, min(self._p.target.groups - window.num_active, window.room(window.newest)))

    def _refill(self, instance: Instance) -> None:
        """Start groups of an instance's own older version, while the trainer would starve otherwise."""
        p, version = self._p, instance.newest
        while (
            p.prompts
            and p.fleet.has_room(instance, p.prompts.peek().tokens)
            and p.pace.would_starve(p.now)
            and p.versions.are_live(version)
            and version > p.window.oldest_allowed
            and self._may_admit(version)
            and p.pace.can_finish(version, p.now)
        ):
            self._start_group(version, instance)

    def _may_admit(self, version: int) -> bool:
        """Whether one more group of `version` may start: target, steps left, gate, bound, a prompt."""
        p = self._p
        active = p.window.num_active
        if active >= p.target.groups:
            p.target.reached()
            return False
        is_wanted = active < (p.steps - p.window.taken) * p.batch.groups
        is_open = is_wanted and p.schedule.gate.is_open
        has_place = p.window.room(version) > 0 and p.batches.allows(version)
        return is_open and has_place and bool(p.prompts)

    @property
    def lacks_prompts(self) -> bool:
        """Whether no batch can fill without another prompt: none is queued and too few groups are active."""
        return not self._p.prompts and self._p.window.num_active < self._p.batch.groups

    def _start_group(self, version: int, place: Instance) -> None:
        """Admit the next prompt as a group pinned to `version` and start its first member: one atomic act."""
        p = self._p
        prompt = p.prompts.take()
        p.window.admit(version)
        p.schedule.gate.admitted()
        group = p.ledger.admit(prompt, version)
        p.emit(Admit(group=group.id, version=version, epoch=prompt.epoch, row=prompt.row))
        p.dispatch.launch(group, place)

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
        free_slots = self._evaluation_slots() - self._evaluations_placed()
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

    def _evaluations_placed(self) -> int:
        # One that lost its instance waits like the others: it must not keep them from theirs.
        groups = self._p.ledger.evaluating.values()
        return sum(t.instance is not None for group in groups for t in group.members)

    def _evaluation_slots(self) -> int:
        slots = sum(instance.spec.slots for instance in self._p.fleet)
        return max(1, int(self._p.control.evaluation_share * slots))
