"""The journal: what a run was told and decided, and the tokens and rewards behind it; the truth about it.

The orchestrator decides, writes, acts: what came in goes through the control plane, `append` makes it durable
together with the decisions and the payloads that belong to it, and only then are the decisions carried out.
So nothing is ever in the world that the journal does not know, and replaying `events()` through a fresh
control plane gives the state the run was in.

One writer at a time (the run directory's lock sees to it), any number of readers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from dora_rl.core.decisions import AnyDecision
from dora_rl.core.fence import Fence, stale_leader
from dora_rl.core.history import Event
from dora_rl.core.inputs import AnyInput
from dora_rl.core.recipe import Recipe
from dora_rl.core.struct_loader import build, to_dict
from dora_rl.store.books import Books
from dora_rl.store.database import (
    check_database,
    create_database,
    damaged,
    named_errors,
    open_database,
    set_storage,
    transaction,
)
from dora_rl.store.episode_tables import EpisodeTables
from dora_rl.store.errors import Contradiction, JournalError
from dora_rl.store.journal_records import (
    AnyPayload,
    EpisodeContexts,
    FinishedGroup,
    JournalledTrajectory,
    Summary,
    TakenBatch,
)
from dora_rl.store.journal_tables import OF_BATCH, Tables
from dora_rl.store.number_bytes import unpack_tokens
from dora_rl.store.payloads import Payloads
from dora_rl.store.trajectory_reader import TrajectoryReader, score_of

_PAGE = 4096
"""Number of events read from the journal at a time."""

_encode = msgspec.msgpack.Encoder().encode
_decode_input = msgspec.msgpack.Decoder(AnyInput).decode
_decode_decisions = msgspec.msgpack.Decoder(tuple[AnyDecision, ...]).decode
_decode_groups = msgspec.msgpack.Decoder(tuple[int, ...]).decode


class Journal:
    """The open journal of one run, to write or to read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fence: Fence | None = None
        self._db = open_database(path)
        try:
            with named_errors(path):
                self._tables = Tables(self._db, path)
                self.recipe = build(Recipe, msgspec.msgpack.decode(self._setting("recipe")), str(path))
                self.num_inputs = self._tables.num_events()
                """Number of inputs appended so far, which is the `seq` of the next."""
        except BaseException:
            self.close()
            raise
        mixes = self.recipe.control.mixes_versions
        self._episodes = EpisodeTables(self._tables, is_episodic=self.recipe.episode is not None)
        self._payloads = Payloads(self._tables, self._episodes, mixes_versions=mixes)
        size = self.recipe.batch.group_size
        self._books = Books(self._tables, self._episodes, group_size=size, mixes_versions=mixes)
        self._trajectories = TrajectoryReader(self._tables, self._episodes, seed=self.recipe.seed)

    @classmethod
    def create(cls, path: Path, recipe: Recipe, *, is_shared: bool = False) -> Self:
        """Create the journal of a new run of this recipe, on storage that machines share or not."""
        settings = {"recipe": _encode(to_dict(recipe)), "covered": _encode(0)}
        create_database(path, settings, is_episodic=recipe.episode is not None, is_shared=is_shared)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open an existing journal: it holds every `append` that returned, and perhaps one more."""
        return cls(path)

    # --- writing ---

    @property
    def epoch(self) -> int:
        """The highest epoch that anything was written under; 0 where nobody said one."""
        row = self._tables.one("SELECT value FROM settings WHERE name = 'epoch'")
        with named_errors(self.path):
            return 0 if row is None else msgspec.msgpack.decode(row[0], type=int)

    def lead(self, fence: Fence, *, is_shared: bool) -> None:
        """Write under an epoch from now on: whoever has a lower one is refused, from this transaction on."""
        set_storage(self._db, self.path, is_shared=is_shared)
        self._fence = fence
        with self._writing():
            self._tables.do("INSERT OR REPLACE INTO settings VALUES (?, ?)", "epoch", _encode(fence.epoch))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction of whoever leads the run; StaleLeader where that is somebody else by now."""
        with transaction(self._db, self.path):
            if self._fence is not None and (newest := self.epoch) > self._fence.epoch:
                raise stale_leader(self._fence.directory, self._fence.epoch, newest)
            yield

    def append(self, events: Sequence[Event], payloads: Sequence[AnyPayload] = ()) -> None:
        """Make inputs, the decisions on them, and payloads durable in one transaction.

        If it raises, nothing of it is recorded, and after DiskFull it may be tried again.
        """
        first = self.num_inputs
        with self._writing():
            # Decisions of this append may rest on its payloads: a batch on rewards that came with it.
            for payload in payloads:
                self._payloads.record(payload)
            rows = [(first + i, _encode(told), _encode(decided)) for i, (told, decided) in enumerate(events)]
            self._tables.do_all("INSERT INTO events VALUES (?, ?, ?)", rows)
            for told, decided in events:
                self._books.record(told)
                for decision in decided:
                    self._books.record(decision)
        self.num_inputs = first + len(events)

    def covered(self, step: int, *, oldest: int | None = None) -> None:
        """Note that a durable checkpoint holds version `step`, and that none before `oldest` is started from.

        Batches before that, by default the same version, are not needed again.
        """
        with self._writing():
            if step > (newest := self._tables.newest_version()):
                raise Contradiction(f"a checkpoint of version {step}, where {newest} is the newest")
            oldest = max(step if oldest is None else oldest, self.oldest_start)
            for name, value in (("covered", max(step, self.covered_step)), ("oldest_start", oldest)):
                self._tables.do("INSERT OR REPLACE INTO settings VALUES (?, ?)", name, _encode(value))

    def prune(self) -> int:
        """Drop prompts and tokens of batches nobody can start before, and return how many; rewards stay."""
        rows = self._tables.each(
            "SELECT number FROM batches WHERE number < ? AND NOT is_pruned ORDER BY number", self.oldest_start
        )
        numbers = [number for (number,) in rows]
        for number in numbers:
            with self._writing():
                self._tables.do(f"DELETE FROM responses WHERE trajectory IN {OF_BATCH}", number)
                self._tables.do(f"DELETE FROM experts WHERE trajectory IN {OF_BATCH}", number)
                self._episodes.prune(number)
                for (group,) in self._tables.each("SELECT id FROM groups WHERE batch = ?", number):
                    self._tables.drop_prompt(group)
                self._tables.do("UPDATE batches SET is_pruned = 1 WHERE number = ?", number)
        return len(numbers)

    # --- reading ---

    def check(self) -> None:
        """Read all of the journal; JournalDamaged where anything is not as it was written."""
        check_database(self._db, self.path)

    @property
    def covered_step(self) -> int:
        """Newest version that a durable checkpoint holds; 0 is the initial model."""
        with named_errors(self.path):
            return msgspec.msgpack.decode(self._setting("covered"), type=int)

    @property
    def oldest_start(self) -> int:
        """Oldest version that training may be started from: the batches after it are all there."""
        row = self._tables.one("SELECT value FROM settings WHERE name = 'oldest_start'")
        with named_errors(self.path):
            # Without it only what the newest checkpoint lacks was kept.
            return self.covered_step if row is None else msgspec.msgpack.decode(row[0], type=int)

    @property
    def newest_version(self) -> int:
        """Newest version that was published; 0 is the initial model."""
        return self._tables.newest_version()

    @property
    def is_training(self) -> bool:
        """Whether a batch was taken whose version is not published."""
        return self._tables.has_batch(self._tables.newest_version())

    @property
    def kept_batches(self) -> dict[int, tuple[int, ...]]:
        """The groups of every batch whose tokens are still here, by the batch's number."""
        rows = self._tables.each("SELECT number, groups FROM batches WHERE NOT is_pruned ORDER BY number")
        return {number: _decode_groups(groups) for number, groups in rows}

    def events(self, first: int = 0) -> Iterator[Event]:
        """Inputs with the decisions they led to, in order, from number `first` on."""
        for start in range(first, self.num_inputs, _PAGE):
            with named_errors(self.path):
                rows = self._tables.each(
                    "SELECT input, decisions FROM events WHERE seq >= ? ORDER BY seq LIMIT ?", start, _PAGE
                )
                page: list[Event] = [
                    (_decode_input(told), list(_decode_decisions(decided))) for told, decided in rows
                ]
            yield from page

    def unfinished(self) -> Iterator[JournalledTrajectory]:
        """Trajectories that were being generated, with the tokens they had, to go on with."""
        return self._trajectories.where("state = 'running'")

    def prompt(self, group: int) -> tuple[int, ...] | None:
        """The prompt of a group that was admitted; None where it is dropped, or was never recorded."""
        row = self._tables.one("SELECT tokens FROM prompts WHERE group_id = ?", group)
        return None if row is None else unpack_tokens(row[0])

    def opened(self) -> tuple[EpisodeContexts, ...]:
        """First contexts of queued prompts, in the order in which their environments were reset."""
        with named_errors(self.path):
            return self._episodes.contexts()

    def streamed_row(self, row: int) -> bytes:
        """The content of a row that was read from a stream, which no batch that was pruned may have had."""
        with named_errors(self.path):
            found = self._tables.one("SELECT content FROM streamed_rows WHERE row = ?", row)
        if found is None:
            raise JournalError(f"the journal has no row {row} of a stream")
        content: bytes = found[0]
        return content

    def unscored(self) -> Iterator[JournalledTrajectory]:
        """Trajectories that ended and have no reward yet."""
        return self._trajectories.where("state = 'ended'")

    def group(self, group: int) -> FinishedGroup:
        """One finished group with its tokens and rewards; they must not have been pruned."""
        open_states = "group_id = ? AND state IN ('running', 'ended')"
        if self._tables.one(f"SELECT 1 FROM trajectories WHERE {open_states}", group):
            raise JournalError(f"group {group} is not finished")
        members = tuple(self._trajectories.where("group_id = ? AND state = 'scored'", group))
        found = self._tables.one("SELECT version FROM groups WHERE id = ?", group)
        if found is None:
            raise JournalError(f"the journal knows no group {group}")
        return FinishedGroup(group=group, version=found[0], members=members)

    def batches_after(self, step: int) -> Iterator[TakenBatch]:
        """Batches that a trainer starting from a checkpoint of version `step` trains on, in order."""
        if step < (oldest := self.oldest_start):
            raise JournalError(
                f"batches after version {step} were given up: version {oldest} has a checkpoint",
                hint="start from that checkpoint or a later one",
            )
        rows = self._tables.each(
            "SELECT number, groups, is_published FROM batches WHERE number >= ? ORDER BY number", step
        )
        return (
            TakenBatch(
                number=number,
                groups=tuple(self.group(group) for group in _decode_groups(groups)),
                is_published=bool(is_published),
            )
            for number, groups, is_published in rows
        )

    def summaries(self) -> Iterator[Summary]:
        """Every trajectory that ever started or was closed: version, length, rewards, outcome."""
        rows = self._tables.each(
            "SELECT t.id, group_id, t.version, attempt, state, num_tokens, is_truncated, is_evaluation,"
            " batch, outcome, score FROM trajectories t JOIN groups g ON g.id = group_id ORDER BY t.id"
        )
        for row in rows:
            score = score_of(row[10])
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
                reward=score.reward,
                values=score.values,
            )

    def step_metrics(self) -> dict[int, dict[str, float | None]]:
        """What was measured of each published step, by its version."""
        rows = self._tables.each("SELECT version, line FROM metrics ORDER BY version")
        return {version: msgspec.msgpack.decode(line) for version, line in rows}

    # --- ending ---

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ---

    def _setting(self, name: str) -> bytes:
        row = self._tables.one("SELECT value FROM settings WHERE name = ?", name)
        if row is None:
            raise damaged(self.path, f"it has lost its {name}")
        value: bytes = row[0]
        return value
