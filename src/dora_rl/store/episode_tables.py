"""SQL statements on what only episodes have. Run inside a transaction of the caller's.

An episode's first branch is a response like any other's. Its other branches, how its turns ended and what its
side effects gave are kept beside it for as long as its tokens are, in tables that only journals of
episodes have. First contexts are kept from the reset of a group's environments to its admission.
"""

from msgspec import msgpack

from dora_rl.core.turn_finish import TurnFinish
from dora_rl.store.journal_records import EarlyOnce, EpisodeContexts, OnceValue, TurnFinished
from dora_rl.store.journal_tables import OF_BATCH, Tables
from dora_rl.store.number_bytes import pack_tokens, unpack_tokens
from dora_rl.store.responses import Chunk

_encode = msgpack.Encoder().encode
_decode_contexts = msgpack.Decoder(tuple[bytes | tuple[bytes, tuple[EarlyOnce, ...]], ...]).decode
_CHUNK = ", ".join(Chunk._fields)
_OF_TRAJECTORIES = ("branch_chunks", "turns", "onces")


class EpisodeTables:
    """SQL statements on branches, turns, side effects and first contexts."""

    def __init__(self, tables: Tables, *, is_episodic: bool) -> None:
        self._tables = tables
        self.is_episodic = is_episodic
        """Whether the journal has these tables: it is of a run of episodes."""

    def prune(self, batch: int) -> None:
        """Drop everything that only episodes have, of the trajectories of a batch."""
        for table in _OF_TRAJECTORIES if self.is_episodic else ():
            self._tables.do(f"DELETE FROM {table} WHERE trajectory IN {OF_BATCH}", batch)

    def drop(self, trajectory: int) -> None:
        """Drop everything of one trajectory that only an episode has."""
        for table in _OF_TRAJECTORIES if self.is_episodic else ():
            self._tables.do(f"DELETE FROM {table} WHERE trajectory = ?", trajectory)

    # --- branches beside the first ---

    def insert_chunk(self, branch: int, chunk: Chunk, *, is_trained: bool) -> None:
        self._tables.do(
            f"INSERT INTO branch_chunks ({_CHUNK}, branch, is_trained) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *chunk,
            branch,
            is_trained,
        )

    def num_tokens(self, trajectory: int, branch: int) -> int:
        found = self._tables.one(
            "SELECT total(length(tokens) / 4) FROM branch_chunks WHERE trajectory = ? AND branch = ?",
            trajectory,
            branch,
        )
        return int(found[0]) if found else 0

    def branches(self, trajectory: int) -> dict[int, tuple[bool, list[Chunk]]]:
        """The chunks of each branch beside the first, and whether it is trained on."""
        found: dict[int, tuple[bool, list[Chunk]]] = {}
        rows = self._tables.each(
            f"SELECT branch, is_trained, {_CHUNK} FROM branch_chunks WHERE trajectory = ?"
            " ORDER BY branch, start",
            trajectory,
        )
        for branch, is_trained, *chunk in rows:
            # The first chunk, the context, says whether the branch is trained on.
            found.setdefault(branch, (bool(is_trained), []))[1].append(Chunk(*chunk))
        return found

    # --- turns ---

    def add_turn(self, turn: TurnFinished) -> None:
        self._tables.do(
            "INSERT INTO turns (trajectory, number, branch, finish)"
            " SELECT ?, count(*), ?, ? FROM turns WHERE trajectory = ?",
            turn.trajectory,
            turn.branch,
            turn.finish,
            turn.trajectory,
        )

    def turns(self, trajectory: int) -> list[tuple[int, TurnFinish]]:
        """The branch of each turn and how it ended, in the order they were taken."""
        rows = self._tables.each(
            "SELECT branch, finish FROM turns WHERE trajectory = ? ORDER BY number", trajectory
        )
        return [(branch, finish) for branch, finish in rows]

    # --- side effects ---

    def add_once(self, once: OnceValue) -> None:
        self._tables.do(
            "INSERT INTO onces (trajectory, branch, number, key, value) VALUES (?, ?, ?, ?, ?)",
            once.trajectory,
            once.branch,
            once.number,
            once.key,
            once.value,
        )

    def onces(self, trajectory: int, attempt: int) -> tuple[OnceValue, ...]:
        rows = self._tables.each(
            "SELECT branch, number, key, value FROM onces WHERE trajectory = ? ORDER BY branch, number",
            trajectory,
        )
        return tuple(
            OnceValue(
                trajectory=trajectory, attempt=attempt, branch=branch, number=number, key=key, value=value
            )
            for branch, number, key, value in rows
        )

    # --- first contexts ---

    def add_contexts(self, opened: EpisodeContexts) -> None:
        self._tables.do(
            "INSERT INTO contexts (epoch, row, is_evaluation, tokens) VALUES (?, ?, ?, ?)",
            opened.epoch,
            opened.row,
            opened.is_evaluation,
            _encode(_packed(opened)),
        )

    def drop_contexts(self, epoch: int, row: int, *, is_evaluation: bool) -> None:
        """Drop the first contexts of a prompt that is admitted; a row may be evaluated twice at a time."""
        if self.is_episodic:
            self._tables.do(
                "DELETE FROM contexts WHERE id ="
                " (SELECT min(id) FROM contexts WHERE epoch = ? AND row = ? AND is_evaluation = ?)",
                epoch,
                row,
                is_evaluation,
            )

    def contexts(self) -> tuple[EpisodeContexts, ...]:
        """First contexts of prompts that are not admitted, in the order they were reset."""
        if not self.is_episodic:
            return ()
        rows = self._tables.each("SELECT epoch, row, is_evaluation, tokens FROM contexts ORDER BY id")
        return tuple(
            EpisodeContexts(
                epoch=epoch,
                row=row,
                is_evaluation=bool(is_evaluation),
                contexts=tuple(unpack_tokens(context) for context, _ in members),
                onces=tuple(onces for _, onces in members) if any(onces for _, onces in members) else (),
            )
            for epoch, row, is_evaluation, members in (
                (epoch, row, is_evaluation, _unpacked(packed)) for epoch, row, is_evaluation, packed in rows
            )
        )


def _packed(opened: EpisodeContexts) -> list[bytes | tuple[bytes, tuple[EarlyOnce, ...]]]:
    """The first context of each member, with the side effects before it where there are any."""
    contexts = [pack_tokens(context) for context in opened.contexts]
    if not opened.onces:
        return [*contexts]
    return list(zip(contexts, opened.onces, strict=True))


def _unpacked(packed: bytes) -> list[tuple[bytes, tuple[EarlyOnce, ...]]]:
    return [(each, ()) if isinstance(each, bytes) else each for each in _decode_contexts(packed)]
