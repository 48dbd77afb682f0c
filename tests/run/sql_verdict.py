"""The laws, read off a journal by SQL and msgpack alone, with no code of the audit's, the store's, control's.

A second opinion: a mistake that both the writer and its audit make would be seen here.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

unpacked = msgspec.msgpack.decode

_BATCHES = "SELECT number, groups FROM batches"


def violations(journal: Path, *, is_complete: bool = True) -> list[str]:
    """What is against a law in a run's journal, in words; `is_complete`: the run is over."""
    with closing(sqlite3.connect(journal)) as db:
        return list(_Verdict(db, is_complete))


class _Verdict:
    def __init__(self, db: sqlite3.Connection, is_complete: bool) -> None:
        self._db = db
        self._is_complete = is_complete
        recipe = unpacked(self._one("SELECT value FROM settings WHERE name = 'recipe'"))
        self._steps, self._batch = recipe["steps"], recipe["batch"]
        self._max_staleness = recipe["control"]["max_staleness"]

    def __iter__(self) -> Iterator[str]:
        yield from self._events()
        yield from self._batches()
        yield from self._trajectories()
        if self._is_complete:
            yield from self._ends()

    def _events(self) -> Iterator[str]:
        """Takes and publications as they were told, against the table of batches."""
        numbers = [number for (number,) in self._db.execute("SELECT seq FROM events ORDER BY seq")]
        if numbers != list(range(len(numbers))):
            yield "events are not numbered through"
        admitted, published, taken = Counter[int](), list[int](), dict[int, list[int]]()
        for told, decided in self._db.execute("SELECT input, decisions FROM events ORDER BY seq"):
            told = unpacked(told)
            if told["input"] == "Published":
                published.append(told["version"])
            elif told["input"] == "StepsExtended":
                self._steps = told["steps"]
            elif told["input"] == "StepLost":
                taken.pop(len(published), None)
            for decision in unpacked(decided):
                if decision["decision"] == "Take":
                    if decision["batch"] in taken:
                        yield f"batch {decision['batch']} was taken twice"
                    taken[decision["batch"]] = list(decision["groups"])
                elif decision["decision"] == "Admit":
                    admitted[decision["group"]] += 1
        if published != list(range(1, len(published) + 1)):
            yield f"versions were published in the order {published}"
        tabled = {n: list(unpacked(groups)) for n, groups in self._db.execute(_BATCHES)}
        if tabled != taken:
            yield "the table of batches is not what was taken"
        known = {group for (group,) in self._db.execute("SELECT id FROM groups WHERE NOT is_evaluation")}
        if known != set(admitted) or any(count > 1 for count in admitted.values()):
            yield f"groups {sorted(known ^ set(admitted))} were admitted and are missing, or were not"
        if self._is_complete and len(published) != self._steps:
            yield f"{len(published)} versions of {self._steps} were published"

    def _batches(self) -> Iterator[str]:
        seen = Counter[int]()
        for number, packed in self._db.execute(_BATCHES):
            groups = unpacked(packed)
            seen.update(groups)
            if len(groups) != self._batch["groups"]:
                yield f"batch {number} has {len(groups)} groups"
            for group in groups:
                row = self._db.execute("SELECT batch, version FROM groups WHERE id = ?", (group,)).fetchone()
                if row is None or row[0] != number:
                    yield f"group {group} of batch {number} is marked as of {row and row[0]}"
                elif not 0 <= number - row[1] <= self._max_staleness:
                    yield f"group {group} of version {row[1]} is in batch {number}"
        yield from (f"group {group} is in {count} batches" for group, count in seen.items() if count > 1)
        marked = "SELECT id FROM groups WHERE batch IS NOT NULL"
        yield from (
            f"group {group} is marked as taken" for (group,) in self._db.execute(marked) if not seen[group]
        )

    def _trajectories(self) -> Iterator[str]:
        size = self._batch["group_size"]
        query = (
            "SELECT g.id, count(t.id), count(DISTINCT member), total(state = 'scored'),"
            " total(state = 'closed') FROM groups g LEFT JOIN trajectories t ON t.group_id = g.id"
            " WHERE batch IS NOT NULL GROUP BY g.id"
        )
        for group, number, members, scored, closed in self._db.execute(query):
            if (number, members, scored + closed) != (size, size, size) or not scored:
                yield f"group {group} was taken with {number} members, {scored} scored, {closed} closed"
        query = (
            "SELECT t.id, t.version, g.version, num_tokens, length(tokens), length(logprobs), stretches"
            " FROM trajectories t JOIN groups g ON g.id = group_id"
            " LEFT JOIN responses r ON r.trajectory = t.id"
        )
        for key, own, pinned, number, tokens, logprobs, stretches in self._db.execute(query):
            if own != pinned:
                yield f"trajectory {key} of version {own} is in a group of {pinned}"
            if tokens is None:
                continue
            if not tokens == logprobs == 4 * number > 0:
                yield f"trajectory {key} has {tokens} bytes of {number} tokens, {logprobs} of logprobs"
            if any(version not in (None, own) for _, version in unpacked(stretches)):
                yield f"trajectory {key} of version {own} was drawn by {unpacked(stretches)}"
        twice = (
            "SELECT epoch, row, count(*) FROM groups WHERE NOT is_evaluation GROUP BY epoch, row"
            " HAVING count(*) > 1"
        )
        yield from (f"row {row} was admitted {n} times in epoch {e}" for e, row, n in self._db.execute(twice))

    def _ends(self) -> Iterator[str]:
        open_ones = self._one(
            "SELECT count(*) FROM groups g WHERE batch IS NULL AND NOT is_evaluation AND ? !="
            " (SELECT count(*) FROM trajectories WHERE group_id = g.id AND state = 'closed')",
            self._batch["group_size"],
        )
        if open_ones:
            yield f"{open_ones} groups that were admitted are in no batch and have no outcome"
        unpublished = self._one("SELECT count(*) FROM batches WHERE NOT is_published")
        if unpublished:
            yield f"{unpublished} batches were not published"
        measured = [
            version for (version,) in self._db.execute("SELECT version FROM metrics ORDER BY version")
        ]
        if measured != list(range(1, self._steps + 1)):
            yield f"metrics are of the steps {measured}"

    def _one(self, query: str, *values: Any) -> Any:
        return self._db.execute(query, values).fetchone()[0]
