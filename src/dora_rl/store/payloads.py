"""Payloads into the journal's tables: tokens as they come, complete responses, rewards.

A payload of an attempt that is over, or of a trajectory that was closed, is left out: it was under way when
control decided. Anything else that does not fit what is recorded is a Contradiction.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import msgpack

from dora_rl.store.episode_tables import EpisodeTables
from dora_rl.store.errors import Contradiction
from dora_rl.store.journal_records import (
    AnyPayload,
    EpisodeContexts,
    EpisodeOver,
    OnceValue,
    Progress,
    PromptTokens,
    Rewarded,
    Rewound,
    StepMetrics,
    StoredScore,
    StreamedRow,
    TurnFinished,
)
from dora_rl.store.journal_tables import Tables
from dora_rl.store.number_bytes import pack_logprobs, pack_tokens
from dora_rl.store.responses import Chunk, cut_chunks, join_chunks, unpack_experts

_encode = msgpack.Encoder().encode

_OfAttempt = Progress | Rewound | TurnFinished | OnceValue | EpisodeOver | Rewarded


class _Trajectory(NamedTuple):
    """The recorded state of a trajectory, by which a payload is accepted, left out or refused."""

    group: int
    version: int
    attempt: int
    state: str
    num_tokens: int
    is_evaluation: bool


class Payloads:
    """Writes payloads into the journal's tables, one after the other."""

    def __init__(self, tables: Tables, episodes: EpisodeTables, *, mixes_versions: bool) -> None:
        self._tables = tables
        self._episodes = episodes
        self._mixes_versions = mixes_versions
        self._handlers: dict[type, Callable[[Any], None]] = {
            PromptTokens: self._prompt,
            StreamedRow: self._streamed_row,
            EpisodeContexts: episodes.add_contexts,
            Progress: self._progress,
            Rewound: self._rewound,
            TurnFinished: self._turn_finished,
            OnceValue: self._once,
            EpisodeOver: self._episode_over,
            Rewarded: self._rewarded,
            StepMetrics: self._measured,
        }

    def record(self, payload: AnyPayload) -> None:
        """Write one payload, or leave it out if its attempt is over."""
        self._handlers[type(payload)](payload)

    def _prompt(self, payload: PromptTokens) -> None:
        if self._tables.one("SELECT 1 FROM groups WHERE id = ?", payload.group):
            raise Contradiction(f"the prompt of group {payload.group} comes after its start")
        self._tables.do("INSERT INTO prompts VALUES (?, ?)", payload.group, pack_tokens(payload.tokens))

    def _streamed_row(self, payload: StreamedRow) -> None:
        self._tables.do("INSERT INTO streamed_rows VALUES (?, ?)", payload.row, payload.content)

    def _progress(self, payload: Progress) -> None:
        """Append tokens in a chunk; behind the last ones all chunks become one response."""
        found, key = self._live(payload, "running"), payload.trajectory
        if found is None or not (payload.tokens or payload.is_last):
            return
        self._check_progress(payload, found)
        if payload.tokens:
            chunk = Chunk(
                trajectory=key,
                start=payload.start,
                version=payload.version,
                tokens=pack_tokens(payload.tokens),
                logprobs=pack_logprobs(payload.logprobs),
                cut_logprobs=pack_logprobs(payload.cut_logprobs),
            )
            if payload.branch:
                self._episodes.insert_chunk(payload.branch, chunk, is_trained=payload.is_trained)
            else:
                self._tables.insert_chunk(chunk)
                self._set_num_tokens(key, payload.start + len(payload.tokens))
            if payload.experts:
                packed = _encode(payload.experts)
                self._tables.insert_experts(key, payload.branch, payload.start, packed)
        if payload.is_last:
            self._end(key, is_truncated=payload.is_truncated)

    def _check_progress(self, payload: Progress, found: _Trajectory) -> None:
        """Refuse tokens out of their place, or of another version than the trajectory's."""
        key, branch = payload.trajectory, payload.branch
        num_tokens = self._episodes.num_tokens(key, branch) if branch else found.num_tokens
        if payload.start != num_tokens:
            where = f" of branch {branch}" if branch else ""
            raise Contradiction(
                f"trajectory {key}: tokens{where} from {payload.start} on, where {num_tokens} are recorded"
            )
        if branch and (payload.is_last or (payload.version is not None and not num_tokens)):
            raise Contradiction(
                f"trajectory {key}: branch {branch} begins with its context, and ends with its episode"
            )
        if payload.version not in (None, found.version) and not self._mixes_versions:
            raise Contradiction(
                f"trajectory {key} is pinned to version {found.version}, "
                f"its tokens were drawn under {payload.version}"
            )

    def _end(self, trajectory: int, *, is_truncated: bool) -> None:
        joined = join_chunks(self._tables.chunks(trajectory))
        self._tables.drop_chunks(trajectory)
        self._tables.do("INSERT INTO responses VALUES (?, ?, ?, ?, ?)", trajectory, *joined)
        self._tables.do(
            "UPDATE trajectories SET state = 'ended', is_truncated = ? WHERE id = ?", is_truncated, trajectory
        )

    def _turn_finished(self, payload: TurnFinished) -> None:
        if self._live(payload, "running") is not None:
            self._episodes.add_turn(payload)

    def _once(self, payload: OnceValue) -> None:
        if self._live(payload, "running") is not None:
            self._episodes.add_once(payload)

    def _episode_over(self, payload: EpisodeOver) -> None:
        if self._live(payload, "running") is not None:
            self._end(payload.trajectory, is_truncated=payload.is_truncated)

    def _rewound(self, payload: Rewound) -> None:
        found = self._live(payload, "running")
        if found is None:
            return
        if not 0 <= payload.num_tokens <= found.num_tokens:
            raise Contradiction(
                f"trajectory {payload.trajectory}: back to {payload.num_tokens} tokens of {found.num_tokens}"
            )
        if self._episodes.is_episodic and self._episodes.turns(payload.trajectory):
            raise Contradiction(f"trajectory {payload.trajectory}: turns that were taken stay")
        chunks = self._tables.chunks(payload.trajectory)
        self._tables.drop_chunks(payload.trajectory)
        self._cut_experts(payload.trajectory, payload.num_tokens)
        for chunk in cut_chunks(chunks, payload.num_tokens):
            self._tables.insert_chunk(chunk)
        self._set_num_tokens(payload.trajectory, payload.num_tokens)

    def _cut_experts(self, trajectory: int, num_tokens: int) -> None:
        """Keep the experts of the first tokens of the first branch."""
        recorded = self._tables.experts(trajectory)
        self._tables.drop_experts(trajectory)
        for (branch, start), packed in recorded.items():
            if kept := unpack_experts(packed)[: max(0, num_tokens - start)]:
                self._tables.insert_experts(trajectory, branch, start, _encode(kept))

    def _rewarded(self, payload: Rewarded) -> None:
        found, key = self._live(payload, "ended"), payload.trajectory
        if found is None:
            return
        self._check_turns(payload)
        score = StoredScore(
            reward=payload.reward, values=payload.values, extras=payload.extras, turns=payload.turns
        )
        self._tables.do(
            "UPDATE trajectories SET state = 'scored', score = ? WHERE id = ?", _encode(score), key
        )
        if found.is_evaluation:  # Nobody trains on it.
            self._tables.drop_response(key)
            self._tables.drop_experts(key)
            self._episodes.drop(key)
            self._tables.drop_prompt(found.group)

    def _check_turns(self, payload: Rewarded) -> None:
        """Refuse rewards of turns that were never taken, or two of one."""
        named = [(each.branch, each.turn) for each in payload.turns]
        if not named:
            return
        num_turns = Counter(branch for branch, _ in self._episodes.turns(payload.trajectory))
        is_known = all(0 <= turn < num_turns[branch] for branch, turn in named)
        if not is_known or len(set(named)) < len(named):
            raise Contradiction(
                f"trajectory {payload.trajectory}: rewards of the turns {named}, "
                f"where the branches have so many: {dict(num_turns)}"
            )

    def _measured(self, payload: StepMetrics) -> None:
        if payload.version != self._tables.newest_version() + 1:
            raise Contradiction(f"metrics of version {payload.version}, which is not the next")
        self._tables.do("INSERT INTO metrics VALUES (?, ?)", payload.version, _encode(payload.values))

    def _live(self, payload: _OfAttempt, state: str) -> _Trajectory | None:
        """The trajectory of a payload, which must be in `state`; None if the payload's attempt is over."""
        key = payload.trajectory
        row = self._tables.one(
            "SELECT group_id, t.version, attempt, state, num_tokens, is_evaluation"
            " FROM trajectories t JOIN groups g ON g.id = group_id WHERE t.id = ?",
            key,
        )
        if row is None:
            raise Contradiction(f"trajectory {key} was never started")
        found = _Trajectory(*row)
        if payload.attempt < found.attempt or found.state == "closed":
            return None
        if payload.attempt > found.attempt or found.state != state:
            raise Contradiction(
                f"trajectory {key}: {type(payload).__name__} of attempt {payload.attempt}, "
                f"while attempt {found.attempt} is {found.state}"
            )
        return found

    def _set_num_tokens(self, trajectory: int, num_tokens: int) -> None:
        self._tables.do("UPDATE trajectories SET num_tokens = ? WHERE id = ?", num_tokens, trajectory)
