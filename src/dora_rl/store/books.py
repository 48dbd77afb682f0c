"""Inputs and decisions into the journal's tables: what they change about groups, batches and versions.

Owns the rules by which a record may follow another; one that may not is a Contradiction. Most records
change nothing here. What does is written once: a batch, a published version, an admission, an end.
A trajectory's state:

    Start ──> running ──last Progress──> ended ──Rewarded──> scored ──> its group is taken
                a Reopen or a Start of a later attempt begins again; Close ends it from anywhere: closed
"""

from collections.abc import Callable
from typing import Any

from msgspec import msgpack

from dora_rl.core.decisions import Admit, Close, Decision, Reopen, Start, Take
from dora_rl.core.inputs import Input, Published, StepLost
from dora_rl.store.episode_tables import EpisodeTables
from dora_rl.store.errors import Contradiction
from dora_rl.store.journal_tables import Tables

_encode = msgpack.Encoder().encode


class Books:
    """Writes what inputs and decisions change into the journal's tables, one after the other."""

    def __init__(
        self, tables: Tables, episodes: EpisodeTables, *, group_size: int, mixes_versions: bool
    ) -> None:
        self._tables = tables
        self._episodes = episodes
        self._group_size = group_size
        self._mixes_versions = mixes_versions
        self._handlers: dict[type, Callable[[Any], None]] = {
            Published: self._published,
            StepLost: self._step_lost,
            Admit: self._admitted,
            Start: self._started,
            Reopen: self._reopened,
            Take: self._taken,
            Close: self._closed,
        }

    def record(self, record: Input | Decision) -> None:
        """Write what one input or decision changes; a Contradiction if it cannot follow what is recorded."""
        handler = self._handlers.get(type(record))
        if handler is not None:
            handler(record)

    # --- the trainer ---

    def _published(self, event: Published) -> None:
        newest = self._tables.newest_version()
        if event.version != newest + 1 or not self._tables.has_batch(newest):
            raise Contradiction(
                f"version {event.version} is published after {newest}, or its batch was never taken"
            )
        self._tables.do("UPDATE batches SET is_published = 1 WHERE number = ?", newest)

    def _step_lost(self, event: StepLost) -> None:
        """Give back the batch in training, if there is one."""
        number = self._tables.newest_version()
        if self._tables.do("DELETE FROM batches WHERE number = ?", number):
            self._tables.do("UPDATE groups SET batch = NULL WHERE batch = ?", number)

    def _taken(self, decision: Take) -> None:
        number = decision.batch
        if number != self._tables.newest_version() or self._tables.has_batch(number):
            raise Contradiction(f"batch {number} is not the next one to be taken")
        for group in decision.groups:
            scored, closed = self._tables.one(
                "SELECT total(state = 'scored'), total(state = 'closed') FROM trajectories"
                " WHERE group_id = ?",
                group,
            ) or (0.0, 0.0)
            if not scored or scored + closed != self._group_size:
                raise Contradiction(
                    f"batch {number} takes group {group}, of whose {self._group_size} members "
                    f"{scored:.0f} are scored and {closed:.0f} closed"
                )
            changed = self._tables.do(
                "UPDATE groups SET batch = ? WHERE id = ? AND batch IS NULL AND NOT is_evaluation",
                number,
                group,
            )
            if not changed:
                raise Contradiction(f"batch {number} takes group {group}, which was taken before")
        self._tables.do(
            "INSERT INTO batches (number, groups) VALUES (?, ?)", number, _encode(decision.groups)
        )

    # --- groups and trajectories ---

    def _admitted(self, decision: Admit) -> None:
        self._new_group(decision, is_evaluation=False)

    def _started(self, decision: Start) -> None:
        """Record a trajectory's first start, another attempt, or that it goes on on another instance."""
        if decision.question is not None:
            return  # What a role says is written down as a side effect of the episode that awaits it.
        key, attempt = decision.trajectory, decision.attempt
        found = self._tables.one("SELECT attempt, state FROM trajectories WHERE id = ?", key)
        if found is None and decision.evaluation:
            self._new_group(decision, is_evaluation=True)
        self._check_version(decision)
        match found:
            case None:
                self._check_prompt(decision)
                self._tables.do(
                    "INSERT INTO trajectories (id, group_id, member, version, attempt, state)"
                    " VALUES (?, ?, ?, ?, ?, 'running')",
                    key,
                    decision.group,
                    decision.member,
                    decision.version,
                    attempt,
                )
            case (before, state) if attempt > before and state != "closed":
                self._begin_again(key, attempt)
                self._tables.do("UPDATE trajectories SET version = ? WHERE id = ?", decision.version, key)
            case (before, "running") if attempt == before:
                self._tables.do("UPDATE trajectories SET version = ? WHERE id = ?", decision.version, key)
            case (before, state):
                raise Contradiction(
                    f"trajectory {key}: attempt {attempt} starts, while attempt {before} is {state}"
                )

    def _reopened(self, decision: Reopen) -> None:
        """Record that a later attempt begins in a new environment; one that never started has no row yet."""
        key, attempt = decision.trajectory, decision.attempt
        match self._tables.one("SELECT attempt, state FROM trajectories WHERE id = ?", key):
            case (before, state) if attempt <= before or state == "closed":
                raise Contradiction(
                    f"trajectory {key}: attempt {attempt} is opened, while attempt {before} is {state}"
                )
            case (_, _):
                self._begin_again(key, attempt)

    def _begin_again(self, trajectory: int, attempt: int) -> None:
        """Forget the earlier attempt of a trajectory: nothing of it counts."""
        self._drop_tokens(trajectory)
        self._tables.do(
            "UPDATE trajectories SET attempt = ?, state = 'running', num_tokens = 0, is_truncated = 0,"
            " score = NULL WHERE id = ?",
            attempt,
            trajectory,
        )

    def _new_group(self, decision: Admit | Start, *, is_evaluation: bool) -> None:
        self._tables.do(
            "INSERT INTO groups VALUES (?, ?, ?, ?, ?, NULL)",
            decision.group,
            decision.version,
            decision.epoch,
            decision.row,
            is_evaluation,
        )
        self._episodes.drop_contexts(decision.epoch, decision.row, is_evaluation=is_evaluation)

    def _check_version(self, decision: Start) -> None:
        found = self._tables.one("SELECT version FROM groups WHERE id = ?", decision.group)
        if found is None:
            raise Contradiction(f"group {decision.group} starts without having been admitted")
        if found[0] != decision.version and not self._mixes_versions:
            raise Contradiction(
                f"trajectory {decision.trajectory} is pinned to version {found[0]}, "
                f"and starts under {decision.version}"
            )

    def _check_prompt(self, decision: Start) -> None:
        found = self._tables.one("SELECT length(tokens) / 4 FROM prompts WHERE group_id = ?", decision.group)
        if found is None:
            raise Contradiction(f"group {decision.group} starts without its prompt")
        if found[0] != decision.prompt_tokens:
            raise Contradiction(
                f"the prompt of group {decision.group} has {found[0]} tokens, not {decision.prompt_tokens}"
            )

    def _closed(self, decision: Close) -> None:
        for key in decision.members:
            if self._tables.one("SELECT 1 FROM trajectories WHERE id = ? AND state = 'closed'", key):
                raise Contradiction(f"trajectory {key} was closed before")
            self._drop_tokens(key)
            # A member that never started has no row yet, and is counted all the same.
            self._tables.do(
                "INSERT INTO trajectories (id, group_id, member, version, attempt, state, outcome)"
                " SELECT ?, id, ?, version, 0, 'closed', ? FROM groups WHERE id = ?"
                " ON CONFLICT (id) DO UPDATE SET state = 'closed', outcome = excluded.outcome",
                key,
                key % self._group_size,
                decision.outcome,
                decision.group,
            )
        # Nothing asks again for the prompt of a group whose members are all closed.
        row = self._tables.one(
            "SELECT (SELECT count(*) FROM trajectories WHERE group_id = groups.id AND state = 'closed'),"
            " is_evaluation FROM groups WHERE id = ?",
            decision.group,
        )
        if row is not None and row[0] == (1 if row[1] else self._group_size):
            self._tables.drop_prompt(decision.group)

    def _drop_tokens(self, trajectory: int) -> None:
        self._tables.drop_chunks(trajectory)
        self._tables.drop_response(trajectory)
        self._tables.drop_experts(trajectory)
        self._episodes.drop(trajectory)
