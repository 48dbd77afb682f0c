"""Who is in the device's memory: slots, blocks, parked KV, and the moves that keep them so.

Decides nothing about order; it says whether there is room, brings sequences in and takes them out, and writes
down what an executor must do about it. Only full blocks are shared, so nothing shared is ever written: the
last, partial block of a prompt is copied, once for the kept prefix and once for each member that uses it.
"""

from collections.abc import Iterable

from dora_rl.engines.config import Limits
from dora_rl.engines.native.scheduling.blocks import BlockPool
from dora_rl.engines.native.scheduling.host_room import HostRoom
from dora_rl.engines.native.scheduling.prefixes import Prefix, Prefixes, Remnants
from dora_rl.engines.native.scheduling.sequence import Sequence
from dora_rl.engines.native.scheduling.step_plan import (
    CopyBlock,
    DiscardBlocks,
    Draft,
    Entrant,
    ParkBlocks,
    Plan,
    PlannedRow,
    Table,
    UnparkBlocks,
)
from dora_rl.engines.streams import stream_of


class Residency:
    """Slots and blocks of one engine, and which sequence has which."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = BlockPool(limits.num_blocks)
        self._prefixes = Prefixes(self._pool)
        self._remnants = Remnants(self._pool, limits.block_size)
        self.num_reused = 0
        """Tokens that were not computed again because a branch of the same episode had computed them."""
        self._slots = list(range(limits.max_running - 1, -1, -1))
        self.host = HostRoom(limits.num_host_blocks)
        self._draft = Draft()

    def seal(self, version: int | None, rows: tuple[PlannedRow, ...]) -> Plan:
        """A plan of these rows, behind all moves to be made since the last one."""
        draft, self._draft = self._draft, Draft()
        return Plan(
            version=version,
            rows=rows,
            moves=tuple(draft.moves),
            tables=tuple(draft.tables),
            entrants=tuple(draft.entrants),
            awaits_rows=draft.awaits_rows,
        )

    # --- room -----------------------------------------------------------------------------------

    @property
    def has_slot(self) -> bool:
        """Whether one more sequence may run."""
        return bool(self._slots)

    @property
    def num_free(self) -> int:
        """How many blocks are free on the device."""
        return self._pool.num_free

    @property
    def num_spare(self) -> int:
        """How many blocks are used by nothing but remnants, which go as soon as room is needed."""
        return self._pool.num_spare

    def num_missing(self, sequence: Sequence) -> int:
        """How many blocks must be taken for a sequence to enter."""
        num_needed = self._limits.blocks_for(sequence.num_tokens)
        if sequence.ticket is not None:
            return max(num_needed, self.host.num_blocks(sequence.ticket))
        if not sequence.blocks and (prefix := self._prefix_of(sequence)):
            return num_needed - prefix.num_tokens // self._limits.block_size
        return num_needed - len(sequence.blocks)

    def has_prefix(self, sequence: Sequence) -> bool:
        """Whether the prompt of the sequence's group, or another beginning of it, is computed and kept."""
        return self._prefix_of(sequence) is not None

    def evict_prefix(self) -> bool:
        """Give up the least recently used remnant, else prefix; False when there is neither."""
        return self._remnants.evict() or self._prefixes.evict()

    # --- in and out -----------------------------------------------------------------------------

    def enter(self, sequence: Sequence) -> None:
        """Give the sequence a slot and blocks for all its tokens, with whatever KV it has already."""
        assert sequence.num_drawing == 0, f"{sequence.num_drawing} tokens of it are not known yet"
        sequence.slot = self._slots.pop()
        if sequence.ticket is not None:
            self._unpark(sequence, sequence.ticket)
        elif not sequence.blocks and (prefix := self._prefix_of(sequence)):
            self._use(prefix, sequence)
        while len(sequence.blocks) < self._limits.blocks_for(sequence.num_tokens):
            self._extend(sequence)
        request = sequence.request
        self._draft.tables.append(Table(slot=sequence.slot, first=0, blocks=tuple(sequence.blocks)))
        self._draft.entrants.append(
            Entrant(
                slot=sequence.slot,
                version=request.version,
                sampling=request.sampling,
                stream=stream_of(request.key),
            )
        )

    def grow(self, sequence: Sequence) -> None:
        """Add the block that the sequence's next token goes to."""
        assert sequence.slot is not None, "it is not running"
        first = len(sequence.blocks)
        self._extend(sequence)
        self._draft.tables.append(Table(slot=sequence.slot, first=first, blocks=(sequence.blocks[-1],)))

    def leave_slot(self, sequence: Sequence) -> None:
        """Take a sequence out of its slot; its blocks stay."""
        if sequence.slot is not None:
            self._slots.append(sequence.slot)
            sequence.slot = None

    def offload(self, sequence: Sequence) -> None:
        """Take a sequence's KV off the device: to the host where there is room, else to be computed again."""
        self._draft.awaits_rows = True
        self.leave_slot(sequence)
        num_blocks = self._limits.blocks_for(sequence.num_computed)
        if 0 < num_blocks <= self.host.num_free:
            sequence.ticket = self.host.new_ticket(num_blocks)
            self._draft.moves.append(
                ParkBlocks(
                    ticket=sequence.ticket,
                    blocks=tuple(sequence.blocks[:num_blocks]),
                    num_tokens=sequence.num_computed,
                )
            )
        else:
            sequence.num_lost = max(sequence.num_lost, sequence.num_computed)
            sequence.num_computed = 0
        self._give(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free the slot, the blocks and the parked KV of a sequence; other branches may use what is left."""
        self.leave_slot(sequence)
        self._leave_remnant(sequence)
        self._give(sequence)
        if sequence.ticket is not None:
            self.host.forget(sequence.ticket)
            self._draft.moves.append(DiscardBlocks(ticket=sequence.ticket))
            sequence.ticket = None

    # --- prefixes -------------------------------------------------------------------------------

    def keep_prefix(self, sequence: Sequence) -> None:
        """Keep the prompt of a sequence's group once computed; the copy precedes the next step's rows."""
        key, num_tokens = sequence.prefix_key, sequence.num_shareable
        if key is None or key in self._prefixes or not num_tokens or sequence.num_computed < num_tokens:
            return
        num_full, rest = divmod(num_tokens, self._limits.block_size)
        blocks = sequence.blocks[:num_full]
        for block in blocks:
            self._pool.share(block)
        if rest and self.num_free:
            blocks.append(self._copy(sequence.blocks[num_full]))
            self._draft.awaits_rows = True
        elif rest:
            num_tokens -= rest
        self._prefixes.keep(
            key, Prefix(prompt=sequence.request.prompt, blocks=tuple(blocks), num_tokens=num_tokens)
        )

    def _leave_remnant(self, sequence: Sequence) -> None:
        """Keep the KV of a sequence that is between turns, for branches that begin like it."""
        key, num_tokens = sequence.lineage_key, sequence.num_computed
        # Of one in its turn steps may be under way that have not written yet what they count as computed.
        if key is None or not sequence.is_held or not sequence.blocks or not num_tokens:
            return
        num_blocks = self._limits.blocks_for(num_tokens)
        kept, sequence.blocks = sequence.blocks[:num_blocks], sequence.blocks[num_blocks:]
        self._remnants.keep(key, sequence.tokens[:num_tokens], tuple(kept))

    def drop_version(self, version: int) -> None:
        """Forget all prefixes and remnants computed with a version."""
        self._prefixes.drop_version(version)
        self._remnants.drop_version(version)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Assert that blocks, slots and parked KV are accounted for, given every sequence there is."""
        sequences = list(sequences)
        self._pool.check_integrity(
            [
                *self._prefixes.uses(),
                *self._remnants.uses(),
                *(block for sequence in sequences for block in sequence.blocks),
            ]
        )
        slots = sorted(self._slots + [each.slot for each in sequences if each.slot is not None])
        assert slots == list(range(self._limits.max_running)), f"slots {slots}"
        self.host.check_integrity({each.ticket for each in sequences if each.ticket is not None})

    # --- parts ----------------------------------------------------------------------------------

    def _prefix_of(self, sequence: Sequence) -> Prefix | None:
        """The longest beginning of a sequence that is computed and kept."""
        prompt = self._prefixes.find(sequence.prefix_key, sequence.request.prompt)
        remnant = self._remnants.find(sequence.lineage_key, sequence.tokens)
        if prompt is None or (remnant is not None and remnant.num_tokens > prompt.num_tokens):
            return remnant
        return prompt

    def _use(self, prefix: Prefix, sequence: Sequence) -> None:
        num_full, rest = divmod(prefix.num_tokens, self._limits.block_size)
        sequence.blocks = list(prefix.blocks[:num_full])
        for block in sequence.blocks:
            self._pool.share(block)
        if rest:
            sequence.blocks.append(self._copy(prefix.blocks[num_full]))
        sequence.num_computed = prefix.num_tokens
        self.num_reused += prefix.num_tokens if not prefix.prompt else 0

    def _unpark(self, sequence: Sequence, ticket: int) -> None:
        for _ in range(self.host.num_blocks(ticket)):
            self._extend(sequence)
        self.host.forget(ticket)
        sequence.ticket = None
        self._draft.moves.append(UnparkBlocks(ticket=ticket, blocks=tuple(sequence.blocks)))

    def _copy(self, source: int) -> int:
        target = self._pool.take(near=source + 1)
        self._draft.moves.append(CopyBlock(source=source, target=target))
        return target

    def _extend(self, sequence: Sequence) -> None:
        sequence.blocks.append(self._pool.take(self._next_to(sequence)))

    def _next_to(self, sequence: Sequence) -> int:
        """The block to look from for a free one: behind the sequence's last, or in a stretch for its slot."""
        if sequence.blocks:
            return sequence.blocks[-1] + 1
        return 1 + (sequence.slot or 0) * self._limits.num_blocks // self._limits.max_running

    def _give(self, sequence: Sequence) -> None:
        for block in sequence.blocks:
            self._pool.give(block)
        sequence.blocks = []
