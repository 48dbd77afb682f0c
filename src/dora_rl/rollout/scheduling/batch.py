"""Who computes: the requests that wait and those that run, in one order.

Order is by deadline, then by submission. Requests enter in that order and never overtake one that waits for
room, and the last in that order is the first to lose its place, so the first always advances: nothing
starves.
"""

from bisect import insort
from collections.abc import Iterator
from operator import attrgetter

from dora_rl.rollout.scheduling.limits import Limits
from dora_rl.rollout.scheduling.plan import Row
from dora_rl.rollout.scheduling.prefixes import PrefixKey
from dora_rl.rollout.scheduling.residency import Residency
from dora_rl.rollout.scheduling.sequence import Sequence

_PRIORITY = attrgetter("priority")


class Batch:
    """Waiting, running and held sequences over the device's memory."""

    def __init__(self, limits: Limits, residency: Residency) -> None:
        self._limits = limits
        self._residency = residency
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.held: list[Sequence] = []
        self.num_preempted = 0

    def wait(self, sequence: Sequence) -> None:
        """Queue a sequence that may have blocks or parked KV already."""
        insort(self.waiting, sequence, key=_PRIORITY)

    def hold(self, sequence: Sequence) -> None:
        """Keep a sequence between turns: out of its slot, with its KV."""
        self.leave(sequence)
        self._residency.leave_slot(sequence)
        self.held.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out of wherever it is; what it has stays its own."""
        for queue in (self.running, self.waiting, self.held):
            if sequence in queue:
                queue.remove(sequence)

    # --- entering -------------------------------------------------------------------------------

    def admit(self) -> None:
        """Let requests enter in order, up to the first for which there is no room yet."""
        if not self.waiting or not self._residency.has_slot:
            return
        being_computed = {each.prefix_key for each in self.running if each.is_computing_prefix}
        for sequence in list(self.waiting):
            if not self._residency.has_slot:
                return
            if self._awaits_prefix(sequence, being_computed):
                continue
            if sequence.num_drawing or not self._make_room(sequence):
                return
            self._enter(sequence)
            if sequence.is_computing_prefix:
                being_computed.add(sequence.prefix_key)

    def _awaits_prefix(self, sequence: Sequence, being_computed: set[PrefixKey | None]) -> bool:
        """Whether another member of its group is computing the prompt right now."""
        is_wanting = sequence.prefix_key is not None and not sequence.num_computed
        return (
            is_wanting and sequence.prefix_key in being_computed and not self._residency.has_prefix(sequence)
        )

    def _enter(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self._residency.enter(sequence)
        insort(self.running, sequence, key=_PRIORITY)

    def _make_room(self, sequence: Sequence) -> bool:
        """Free what nobody computes with until the sequence can enter and every other one can still grow."""
        while self._residency.num_free < self._residency.num_missing(sequence) + len(self.running):
            if not (self._residency.evict_prefix() or self._offload_idle(sequence)):
                return False
        return True

    def _offload_idle(self, but: Sequence) -> bool:
        """Offload a sequence that has blocks and does not run: a held one, else one that comes later."""
        later = (each for each in self.waiting if each.priority > but.priority)
        idle = [each for each in (*self.held, *later) if each.blocks]
        if idle:
            self._residency.offload(max(idle, key=lambda each: (each.is_held, each.priority)))
        return bool(idle)

    # --- computing ------------------------------------------------------------------------------

    def lanes(self) -> dict[int, list[Sequence]]:
        """The requests of each version that a step can advance, the most urgent first."""
        lanes: dict[int, list[Sequence]] = {}
        for sequence in self.running:
            if sequence.is_runnable:
                lanes.setdefault(sequence.request.version, []).append(sequence)
        return lanes

    def rows(self, lane: list[Sequence]) -> Iterator[Row]:
        """Decode rows, then chunks of prefill, within the tokens of a step."""
        room, prefilling = self._limits.step_tokens, []
        for sequence in lane:
            if not sequence.is_decoding:
                prefilling.append(sequence)
            elif sequence.slot is not None and self._can_decode(sequence):
                yield _row(sequence, 1)
                room -= 1
        for sequence in prefilling:
            # Those that still have their slot: one may have lost it to a decoding request.
            if room and sequence.slot is not None:
                row = _row(sequence, min(room, sequence.num_uncomputed))
                yield row
                room -= row.num_tokens

    def _can_decode(self, sequence: Sequence) -> bool:
        """Give it a block for its next token where it lacks one; the last in order makes room."""
        if self._limits.blocks_for(sequence.num_tokens) <= len(sequence.blocks):
            return True
        while not self._residency.num_free:
            if not (self._residency.evict_prefix() or self._offload_idle(sequence)):
                self._preempt(self.running[-1])
            if sequence.slot is None:
                return False
        self._residency.grow(sequence)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preempted += 1
        self.running.remove(sequence)
        self._residency.offload(sequence)
        insort(self.waiting, sequence, key=_PRIORITY)


def _row(sequence: Sequence, num_tokens: int) -> Row:
    """Count the tokens as computed, and the draw behind them as under way."""
    assert sequence.slot is not None, "only a running sequence computes"
    start, end = sequence.num_computed, sequence.num_computed + num_tokens
    row = Row(
        serial=sequence.serial,
        slot=sequence.slot,
        start=start,
        tokens=tuple(sequence.tokens[start:end]),
        is_sampled=end == sequence.num_tokens,
    )
    sequence.num_computed = end
    sequence.num_drawing += row.is_sampled
    return row
