"""Trajectories out of the journal's tables: tokens, turns, rewards, as they were recorded."""

from collections.abc import Iterator
from typing import Any

from msgspec import msgpack
from msgspec.structs import replace

from dora_rl.core.stream_key import StreamKey
from dora_rl.store.episode_tables import EpisodeTables
from dora_rl.store.errors import JournalError
from dora_rl.store.journal_records import (
    JournalledBranch,
    JournalledTrajectory,
    JournalledTurn,
    Response,
    StoredScore,
    Stretch,
)
from dora_rl.store.journal_tables import SqlRow, Tables
from dora_rl.store.number_bytes import unpack_logprobs, unpack_tokens
from dora_rl.store.responses import Joined, join_chunks, unpack_experts

_decode_score = msgpack.Decoder(StoredScore).decode
_decode_stretches = msgpack.Decoder(tuple[tuple[int, int | None], ...]).decode

_TRAJECTORY = (
    "SELECT t.id, group_id, t.version, epoch, row, member, attempt, is_evaluation, is_truncated, score, state"
    " FROM trajectories t JOIN groups g ON g.id = group_id"
)


class TrajectoryReader:
    """Reads trajectories with the tokens recorded of them."""

    def __init__(self, tables: Tables, episodes: EpisodeTables, *, seed: int) -> None:
        self._tables = tables
        self._episodes = episodes
        self._seed = seed

    def where(self, condition: str, *values: Any) -> Iterator[JournalledTrajectory]:
        """The trajectories that meet an SQL condition, in the order of their numbers."""
        rows = self._tables.each(f"{_TRAJECTORY} WHERE {condition} ORDER BY t.id", *values)
        return map(self._trajectory, rows)

    def _trajectory(self, row: SqlRow) -> JournalledTrajectory:
        key, group, version, epoch, number, member, attempt, is_evaluation, is_truncated, score, state = row
        prompt = self._tables.one("SELECT tokens FROM prompts WHERE group_id = ?", group)
        if prompt is None:
            raise JournalError(f"the prompt of group {group} was pruned")
        scored, experts = score_of(score), self._tables.experts(key)
        whole = JournalledTrajectory(
            trajectory=key,
            group=group,
            version=version,
            key=StreamKey(seed=self._seed, epoch=epoch, row=number, member=member, attempt=attempt),
            prompt=unpack_tokens(prompt[0]),
            response=with_experts(_response(self._joined(key, state)), 0, experts),
            is_truncated=bool(is_truncated),
            is_evaluation=bool(is_evaluation),
            reward=scored.reward,
            values=scored.values,
            extras=scored.extras,
        )
        return self._episode(whole, scored, experts) if self._episodes.is_episodic else whole

    def _joined(self, trajectory: int, state: str) -> Joined:
        """A response, which is in one piece, or in chunks while it is being generated."""
        if state == "running":
            return join_chunks(self._tables.chunks(trajectory))
        found = self._tables.one(
            "SELECT stretches, tokens, logprobs, cut_logprobs FROM responses WHERE trajectory = ?", trajectory
        )
        if found is None:
            raise JournalError(f"the tokens of trajectory {trajectory} were pruned")
        return Joined(*found)

    def _episode(
        self, whole: JournalledTrajectory, scored: StoredScore, experts: dict[tuple[int, int], bytes]
    ) -> JournalledTrajectory:
        """The trajectory with its turns, its other branches and its side effects."""
        rewards = {(each.branch, each.turn): each.reward for each in scored.turns}
        turns: dict[int, list[JournalledTurn]] = {}
        for order, (branch, finish) in enumerate(self._episodes.turns(whole.trajectory)):
            own = turns.setdefault(branch, [])
            own.append(JournalledTurn(finish=finish, order=order, reward=rewards.get((branch, len(own)))))
        branches = tuple(
            JournalledBranch(
                number=number,
                response=with_experts(_response(join_chunks(chunks)), number, experts),
                turns=tuple(turns.get(number, ())),
                is_trained=is_trained,
            )
            for number, (is_trained, chunks) in self._episodes.branches(whole.trajectory).items()
        )
        onces = self._episodes.onces(whole.trajectory, whole.key.attempt)
        return replace(whole, turns=tuple(turns.get(0, ())), branches=branches, onces=onces)


def score_of(packed: bytes | None) -> StoredScore:
    """What is kept of a reward; of one that is not scored, nothing."""
    return StoredScore() if packed is None else _decode_score(packed)


def with_experts(response: Response, branch: int, experts: dict[tuple[int, int], bytes]) -> Response:
    """A response of a branch with the experts recorded of its tokens, in runs by branch and first token."""
    own = {start: unpack_experts(packed) for (of, start), packed in experts.items() if of == branch}
    if not own:
        return response
    by_token = {start + place: each for start, run in own.items() for place, each in enumerate(run)}
    drawn = [place for place, version in enumerate(response.versions) if version is not None]
    return replace(response, experts=tuple(by_token.get(place, b"") for place in drawn))


def _response(joined: Joined) -> Response:
    return Response(
        tokens=unpack_tokens(joined.tokens),
        logprobs=unpack_logprobs(joined.logprobs),
        cut_logprobs=unpack_logprobs(joined.cut_logprobs),
        stretches=tuple(Stretch(start=at, version=v) for at, v in _decode_stretches(joined.stretches)),
    )
