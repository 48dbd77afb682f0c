"""Reading the journal: its tables as records. Changes nothing, and knows no control plane."""

from collections.abc import Iterator

from msgspec import msgpack

from dora_rl.core.stream_key import StreamKey
from dora_rl.store.errors import JournalError
from dora_rl.store.journal_records import (
    FinishedGroup,
    Response,
    Summary,
    TakenBatch,
    Unfinished,
    WholeTrajectory,
)
from dora_rl.store.journal_tables import SqlRow, Tables
from dora_rl.store.number_bytes import unpack_tokens
from dora_rl.store.responses import Joined, join_chunks, to_response

_Score = tuple[float | None, dict[str, float | None]]
_decode_score = msgpack.Decoder(_Score).decode
_decode_groups = msgpack.Decoder(tuple[int, ...]).decode

_TRAJECTORY = (
    "SELECT t.id, group_id, t.version, epoch, row, member, attempt, is_evaluation, is_truncated, score"
    " FROM trajectories t JOIN groups g ON g.id = group_id"
)


class Reader:
    """Reads trajectories, groups and batches from a journal's tables."""

    def __init__(self, tables: Tables, *, seed: int) -> None:
        self._tables = tables
        self._seed = seed

    def unfinished(self) -> Iterator[Unfinished]:
        for row in self._tables.each(f"{_TRAJECTORY} WHERE state = 'running' ORDER BY t.id"):
            yield Unfinished(
                trajectory=row[0],
                group=row[1],
                version=row[2],
                key=self._key(row),
                prompt=self._prompt(row[1]),
                response=to_response(join_chunks(self._tables.chunks(row[0]))),
                is_evaluation=bool(row[7]),
            )

    def unscored(self) -> Iterator[WholeTrajectory]:
        for row in self._tables.each(f"{_TRAJECTORY} WHERE state = 'ended' ORDER BY t.id"):
            yield self._whole(row)

    def group(self, group: int) -> FinishedGroup:
        """The scored members of a finished group; their tokens must not have been pruned."""
        open_states = "group_id = ? AND state IN ('running', 'ended')"
        if self._tables.one(f"SELECT 1 FROM trajectories WHERE {open_states}", group):
            raise JournalError(f"group {group} is not finished")
        rows = self._tables.each(
            f"{_TRAJECTORY} WHERE group_id = ? AND state = 'scored' ORDER BY t.id", group
        )
        members = tuple(self._whole(row) for row in rows)
        found = self._tables.one("SELECT version FROM groups WHERE id = ?", group)
        if found is None:
            raise JournalError(f"the journal knows no group {group}")
        return FinishedGroup(group=group, version=found[0], members=members)

    def batches_after(self, step: int) -> Iterator[TakenBatch]:
        rows = self._tables.each(
            "SELECT number, groups, is_published FROM batches WHERE number >= ? ORDER BY number", step
        )
        for number, groups, is_published in rows:
            yield TakenBatch(
                number=number,
                groups=tuple(self.group(group) for group in _decode_groups(groups)),
                is_published=bool(is_published),
            )

    def summaries(self) -> Iterator[Summary]:
        rows = self._tables.each(
            "SELECT t.id, group_id, t.version, attempt, state, num_tokens, is_truncated, is_evaluation,"
            " batch, outcome, score FROM trajectories t JOIN groups g ON g.id = group_id ORDER BY t.id"
        )
        for row in rows:
            reward, values = _score(row[10])
            yield Summary(
                trajectory=row[0],
                group=row[1],
                version=row[2],
                attempt=row[3],
                state=row[4],
                num_tokens=row[5],
                is_truncated=bool(row[6]),
                is_evaluation=bool(row[7]),
                batch=row[8],
                outcome=row[9],
                reward=reward,
                values=values,
            )

    def _whole(self, row: SqlRow) -> WholeTrajectory:
        reward, values = _score(row[9])
        return WholeTrajectory(
            trajectory=row[0],
            group=row[1],
            version=row[2],
            key=self._key(row),
            prompt=self._prompt(row[1]),
            response=self._response(row[0]),
            is_truncated=bool(row[8]),
            is_evaluation=bool(row[7]),
            reward=reward,
            values=values,
        )

    def _key(self, row: SqlRow) -> StreamKey:
        return StreamKey(seed=self._seed, epoch=row[3], row=row[4], member=row[5], attempt=row[6])

    def _prompt(self, group: int) -> tuple[int, ...]:
        found = self._tables.one("SELECT tokens FROM prompts WHERE group_id = ?", group)
        if found is None:
            raise JournalError(f"the prompt of group {group} was pruned")
        return unpack_tokens(found[0])

    def _response(self, trajectory: int) -> Response:
        found = self._tables.one(
            "SELECT stretches, tokens, logprobs, cut_logprobs FROM responses WHERE trajectory = ?", trajectory
        )
        if found is None:
            raise JournalError(f"the tokens of trajectory {trajectory} were pruned")
        return to_response(Joined(*found))


def _score(packed: bytes | None) -> _Score:
    return (None, {}) if packed is None else _decode_score(packed)
