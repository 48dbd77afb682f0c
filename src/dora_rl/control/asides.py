"""Asides: evaluations and turns of roles, which are pinned to a version and counted in no law.

Owns the queues of those that have no instance yet, and how many slots each kind may take. A turn of a role
goes before evaluations, and inherits the deadline of the trajectory that awaits it: the oldest version first.
Knows no environments; whoever hears of them says when an evaluation may start.
"""

import heapq
from collections.abc import Iterable

from dora_rl.control.ledger import GENERATING, Group, Trajectory
from dora_rl.control.parts import ControlParts
from dora_rl.core.inputs import QueuedPrompt, RoleTurnAsked

Queue = list[tuple[int, int, Trajectory]]
"""A heap of requests by the version whose deadline they have, then in the order they came."""


class Asides:
    """Starts evaluations and turns of roles, each within their share of the slots."""

    def __init__(self, parts: ControlParts) -> None:
        self._p = parts
        self._evaluations: dict[int, Queue] = {}
        self._roles: dict[int, Queue] = {}
        self._turns: dict[int, Group] = {}
        """The turns of roles that are awaited, by the numbers they were asked for with."""

    # --- evaluations ---

    def evaluate(self, prompts: Iterable[QueuedPrompt]) -> list[Trajectory]:
        """Pin an evaluation of each of these prompts to the newest version; it starts once it is queued."""
        version, ledger = self._p.window.newest, self._p.ledger
        return [ledger.evaluate(prompt, version).members[0] for prompt in prompts]

    def queue_evaluations(self, members: Iterable[Trajectory]) -> None:
        """Let evaluations wait for a place each."""
        for t in members:
            _add(self._evaluations, t, t.version)
        self.fill()

    def unqueue_evaluation(self, t: Trajectory) -> None:
        """Let an evaluation wait no longer for its first place: its environment failed before."""
        _remove(self._evaluations, t)

    # --- turns of roles ---

    def ask(self, event: RoleTurnAsked) -> None:
        """Queue the turn of a role, and start it if there is room."""
        p = self._p
        assert event.version in p.role_demand.versions, f"version {event.version} is not frozen: {event}"
        assert event.question not in self._turns, f"{event} twice"
        prompt = QueuedPrompt(epoch=0, row=0, tokens=event.tokens)
        group = self._turns[event.question] = p.ledger.ask(prompt, event.version, event.question)
        waiting = p.ledger.group_of(event.trajectory) if event.trajectory is not None else None
        _add(self._roles, group.members[0], p.window.newest if waiting is None else waiting.version)
        p.role_demand.asked(event.version, p.now)
        self.fill()

    def forget_turn(self, question: int, *, tokens: int | None = None) -> Trajectory | None:
        """Forget the turn of a role that was said, or is awaited no longer; None if it is no news."""
        group = self._turns.pop(question, None)
        if group is None:
            return None
        self._p.ledger.forget(group)
        self._p.role_demand.over(group.version, self._p.now, tokens=tokens)
        _remove(self._roles, group.members[0])
        return group.members[0]

    # --- starting ---

    def fill(self) -> None:
        """Start what is queued, as far as the shares and the room allow."""
        p = self._p
        if self._roles:
            num_queued = sum(map(len, self._roles.values()))
            self._fill(self._roles, p.control.role_share, len(self._turns) - num_queued)
        if self._evaluations:
            # One that lost its instance waits like the others: it must not keep them from theirs.
            groups = p.ledger.evaluating.values()
            num_placed = sum(t.phase in GENERATING for group in groups for t in group.members)
            self._fill(self._evaluations, p.control.evaluation_share, num_placed)

    def _fill(self, queues: dict[int, Queue], share: float, num_placed: int) -> None:
        free_slots = max(1, int(share * self._p.fleet.slots)) - num_placed
        for version in sorted(queues):
            queue = queues[version]
            while queue and free_slots > 0:
                _, _, t = queue[0]
                place = self._p.dispatch.place_for(version, t.prompt_tokens)
                if place is None:
                    break
                heapq.heappop(queue)
                self._p.dispatch.start(t, place)
                free_slots -= 1
            if not queue:
                del queues[version]

    def waiting(self) -> dict[int, int]:
        """Number of requests that wait for a place, by version."""
        counts: dict[int, int] = {}
        for queues in (self._evaluations, self._roles):
            for version, queue in queues.items():
                counts[version] = counts.get(version, 0) + len(queue)
        return counts

    def check(self) -> None:
        """Assert that every turn of a role that is awaited is queued or has a place, and that no other is."""
        p = self._p
        assert {group.id for group in self._turns.values()} == set(p.ledger.roles), "turns nobody awaits"
        queued = {t.id for queue in self._roles.values() for _, _, t in queue}
        queued |= {t.id for queue in p.dispatch.pending.values() for t in queue}
        for question, group in self._turns.items():
            t = group.members[0]
            assert t.phase in GENERATING or t.id in queued, f"the turn {question} of a role is nowhere"


def _add(queues: dict[int, Queue], t: Trajectory, deadline: int) -> None:
    heapq.heappush(queues.setdefault(t.version, []), (deadline, t.id, t))


def _remove(queues: dict[int, Queue], t: Trajectory) -> None:
    queue = queues.get(t.version, [])
    left = [each for each in queue if each[2] is not t]
    if len(left) < len(queue):
        heapq.heapify(left)
        queues[t.version] = left
        if not left:
            del queues[t.version]
