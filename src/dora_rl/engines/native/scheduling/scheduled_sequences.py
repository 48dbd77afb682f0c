"""Who computes: the requests that wait and those that run, in one order.

Order is by deadline, then by submission. Requests enter in that order and never overtake one that waits for
room, and the last in that order is the first to lose its place, so the first always advances: nothing
starves.
"""

from bisect import insort
from operator import attrgetter

from msgspec.structs import replace

from dora_rl.engines.config import Limits
from dora_rl.engines.native.scheduling.residency import Residency
from dora_rl.engines.native.scheduling.sequence import Sequence
from dora_rl.engines.native.scheduling.speculation import MAX_PASS_TOKENS, MAX_ROWS, Speculation
from dora_rl.engines.native.scheduling.step_plan import PlannedRow
from dora_rl.engines.native.scheduling.turns import Priority

_PRIORITY = attrgetter("priority")


class ScheduledSequences:
    """Waiting, running and held sequences over the device's memory."""

    def __init__(self, limits: Limits, residency: Residency, speculation: Speculation | None = None) -> None:
        self._limits = limits
        self._residency = residency
        self._speculation = speculation
        self.verifying: set[int] = set()
        """Versions whose next step waits for what becomes of guesses: how many tokens there are depends on
        it."""
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._by_version: dict[int, list[Sequence]] = {}
        """Running sequences, by version."""
        self.held: list[Sequence] = []
        self.num_preempted = 0

    @property
    def num_versions(self) -> int:
        """How many versions have running requests."""
        return len(self._by_version)

    def wait(self, sequence: Sequence) -> None:
        """Queue a sequence that may have blocks or parked KV already."""
        insort(self.waiting, sequence, key=_PRIORITY)

    def hold(self, sequence: Sequence) -> None:
        """Keep a sequence between turns: out of its slot, with its KV."""
        self.leave(sequence)
        self._residency.leave_slot(sequence)
        self.held.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out of whichever queue it is in; it keeps its blocks and its parked KV."""
        if sequence.slot is not None:
            self._stop(sequence)
            return
        for queue in (self.waiting, self.held):
            if sequence in queue:
                queue.remove(sequence)

    def check_integrity(self) -> None:
        """Assert that exactly the sequences with a slot run, in order, each among those of its version."""
        queued = (*self.waiting, *self.running, *self.held)
        assert [each for each in queued if each.slot is not None] == self.running, "a slot went astray"
        assert self.running == sorted(self.running, key=_PRIORITY), "out of order"
        for version, sequences in self._by_version.items():
            own = [each for each in self.running if each.request.version == version]
            assert sequences == own != [], f"version {version}: {sequences}, running {own}"
        assert sum(map(len, self._by_version.values())) == len(self.running), "a version went astray"

    # --- entering -------------------------------------------------------------------------------

    def admit(self) -> None:
        """Let requests enter in order, up to the first for which there is no room yet."""
        if not self.waiting or not self._residency.has_slot:
            return
        being_computed = {each.prefix_key for each in self.running if each.is_computing_prefix}
        for sequence in list(self.waiting):
            if not self._residency.has_slot:
                return
            key = sequence.prefix_key
            awaits_others = key is not None and not sequence.num_computed and key in being_computed
            if awaits_others and not self._residency.has_prefix(sequence):
                continue  # Another member of its group is computing their prompt right now.
            if sequence.num_drawing or not self._make_room(sequence):
                return
            self.waiting.remove(sequence)
            self._residency.enter(sequence)
            for queue in (self.running, self._by_version.setdefault(sequence.request.version, [])):
                insort(queue, sequence, key=_PRIORITY)
            if sequence.is_computing_prefix:
                being_computed.add(key)

    def _stop(self, sequence: Sequence) -> None:
        version = sequence.request.version
        for queue in (self.running, self._by_version[version]):
            queue.remove(sequence)
        if not self._by_version[version]:
            del self._by_version[version]

    def _make_room(self, sequence: Sequence) -> bool:
        """Free blocks of sequences that do not run until this one can enter and all others can still grow."""
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

    def most_urgent(self) -> dict[int, Priority]:
        """The priority of the first sequence that a step can advance, for each version that has one."""
        firsts = ((version, _first_runnable(sequences)) for version, sequences in self._by_version.items())
        return {
            version: first.priority for version, first in firsts if first and version not in self.verifying
        }

    def rows(self, version: int) -> list[PlannedRow]:
        """Rows of the next step of a version: decode first, then prefill in chunks, within its limit."""
        sequences, rows, block_size = list(self._by_version[version]), [], self._limits.block_size
        guesses = self._guesses(sequences)
        # The host's hot loop: nothing but what each decoding sequence needs.
        for sequence in sequences:
            num_tokens, start = sequence.num_tokens, sequence.num_computed
            if num_tokens - start != 1 or num_tokens >= sequence.max_tokens:
                continue
            if num_tokens > len(sequence.blocks) * block_size and not self._can_grow(sequence):
                continue
            tokens, slot = sequence.tokens, sequence.slot
            assert slot is not None, "only a running sequence computes"
            known = (tokens[start],) if start < len(tokens) else ()
            rows.append(
                PlannedRow(serial=sequence.serial, slot=slot, start=start, tokens=known, is_sampled=True)
            )
            sequence.num_computed, sequence.num_tokens = num_tokens, num_tokens + 1
        if guesses:
            return self._with_guesses(version, sequences, rows, guesses)

        room = self._limits.step_tokens - len(rows)
        for sequence in [each for each in sequences if each.num_tokens - each.num_computed > 1]:
            # Those that still have their slot: one may have lost it to a decoding request.
            if not room or not sequence.is_runnable or sequence.slot is None:
                continue
            start = sequence.num_computed
            end = start + min(room, sequence.num_uncomputed)
            is_sampled = end == sequence.num_tokens
            rows.append(
                PlannedRow(
                    serial=sequence.serial,
                    slot=sequence.slot,
                    start=start,
                    tokens=tuple(sequence.tokens[start:end]),
                    is_sampled=is_sampled,
                    num_recomputed=max(0, min(end, sequence.num_lost) - start),
                )
            )
            room -= end - start
            # Its tokens count as computed, and the draw behind the last as under way.
            sequence.num_computed = end
            sequence.num_tokens += is_sampled
        return rows

    def _guesses(self, sequences: list[Sequence]) -> dict[int, tuple[int, ...]]:
        """Guesses for the sequences of a version, by serial; none unless they are few and all decode."""
        if self._speculation is None or len(sequences) > MAX_ROWS:
            return {}
        decoding = [each for each in sequences if each.is_runnable]
        if not decoding or any(each.num_uncomputed != 1 for each in decoding):
            return {}
        room = min(MAX_PASS_TOKENS, self._limits.step_tokens) - len(decoding)
        found = self._speculation.guesses(decoding, room)
        if found is None:
            return {}
        return {sequence.serial: each for sequence, each in zip(decoding, found, strict=True) if each}

    def _with_guesses(
        self,
        version: int,
        sequences: list[Sequence],
        rows: list[PlannedRow],
        guesses: dict[int, tuple[int, ...]],
    ) -> list[PlannedRow]:
        """The rows of a step with as many of the guesses as there is room for."""
        by_serial = {sequence.serial: sequence for sequence in sequences}
        for place, row in enumerate(rows):
            fitting = self._fitting(by_serial[row.serial], row.start + 1, guesses.get(row.serial, ()))
            if fitting:
                rows[place] = replace(row, guesses=fitting)
                self.verifying.add(version)
        return rows

    def _fitting(self, sequence: Sequence, num_tokens: int, guesses: tuple[int, ...]) -> tuple[int, ...]:
        """The guesses behind so many tokens that fit, with blocks that nobody else will need soon."""
        guesses = guesses[: max(0, sequence.max_tokens - num_tokens - 1)]
        size, blocks = self._limits.block_size, sequence.blocks
        while num_tokens + len(guesses) > len(blocks) * size and self._residency.num_free > len(self.running):
            self._residency.grow(sequence)
        return guesses[: len(blocks) * size - num_tokens]

    def _can_grow(self, sequence: Sequence) -> bool:
        """Give a sequence a block for its next token; the last in order makes room."""
        while sequence.slot is not None and not self._residency.num_free:
            if not (self._residency.evict_prefix() or self._offload_idle(sequence)):
                self._preempt(self.running[-1])
        if sequence.slot is None:
            return False
        self._residency.grow(sequence)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preempted += 1
        self._stop(sequence)
        self._residency.offload(sequence)
        insort(self.waiting, sequence, key=_PRIORITY)


def _first_runnable(sequences: list[Sequence]) -> Sequence | None:
    return next((sequence for sequence in sequences if sequence.is_runnable), None)
