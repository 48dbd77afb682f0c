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


def lost_turns(journal: Path) -> Counter[str]:
    """Of a run of episodes: its turns, those that lost their instance, and those of attempts given up."""
    found, taken, attempts = Counter[str](), Counter[int](), dict[int, int]()
    places = dict[int, int]()
    """Where each turn is generated."""
    with closing(sqlite3.connect(journal)) as db:
        for told, decided in db.execute("SELECT input, decisions FROM events ORDER BY seq"):
            told = unpacked(told)
            if told["input"] == "TurnEnded":
                found["turns"] += 1
                taken[told["trajectory"]] += 1
                places.pop(told["trajectory"], None)
            elif told["input"] == "InstanceLost":
                cut = [key for key, place in places.items() if place == told["instance"]]
                found["cut short and gone on with elsewhere"] += len(cut)
                for key in cut:
                    del places[key]
            for each in unpacked(decided):
                key = each.get("trajectory")
                if each["decision"] in ("Start", "Resume"):
                    places[key] = each["instance"]
                elif each["decision"] == "Move" and key in places:
                    places[key] = each["target"]
                if each["decision"] in ("Start", "Reopen"):
                    attempt = each.get("attempt", 0)
                    if attempt > attempts.get(key, 0):
                        found["attempts begun again"] += 1
                        found["generated again"] += taken.pop(key, 0)
                    attempts[key] = attempt
    return found


class _Verdict:
    def __init__(self, db: sqlite3.Connection, is_complete: bool) -> None:
        self._db = db
        self._is_complete = is_complete
        recipe = unpacked(self._one("SELECT value FROM settings WHERE name = 'recipe'"))
        self._steps, self._batch = recipe["steps"], recipe["batch"]
        self._max_staleness = recipe["control"]["max_staleness"]
        self._is_episodic = recipe.get("episode") is not None

    def __iter__(self) -> Iterator[str]:
        yield from self._events()
        yield from self._batches()
        yield from self._trajectories()
        if self._is_episodic:
            yield from self._episodes()
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
            stretches = unpacked(stretches)
            ends = [*(begin for begin, _ in stretches[1:]), number]
            drawn = sum(
                end - begin
                for (begin, version), end in zip(stretches, ends, strict=False)
                if version is not None
            )
            if not (tokens == 4 * number and logprobs == 4 * drawn > 0):
                yield f"trajectory {key} has {tokens} bytes of {number} tokens, {logprobs} of logprobs"
            if not self._is_episodic and drawn != number:
                yield f"trajectory {key} has tokens that nobody drew"
            if any(version not in (None, own) for _, version in stretches):
                yield f"trajectory {key} of version {own} was drawn by {stretches}"
        twice = (
            "SELECT epoch, row, count(*) FROM groups WHERE NOT is_evaluation GROUP BY epoch, row"
            " HAVING count(*) > 1"
        )
        yield from (f"row {row} was admitted {n} times in epoch {e}" for e, row, n in self._db.execute(twice))

    def _episodes(self) -> Iterator[str]:
        """Branches and turns of episodes: whole, of one version, and only where tokens are kept."""
        kept = "SELECT trajectory FROM responses UNION SELECT id FROM trajectories WHERE state = 'running'"
        for table in ("branch_chunks", "turns", "onces"):
            stray = self._one(f"SELECT count(*) FROM {table} WHERE trajectory NOT IN ({kept})")
            if stray:
                yield f"{stray} rows of {table} are of trajectories without tokens"
        stretches = Counter[tuple[int, int]]()
        for key, packed in self._db.execute("SELECT trajectory, stretches FROM responses"):
            stretches[key, 0] = sum(version is not None for _, version in unpacked(packed))
        place, before, end = None, None, 0
        for key, branch, start, version, pinned, tokens, logprobs in self._db.execute(
            "SELECT trajectory, branch, start, c.version, t.version, length(tokens), length(logprobs)"
            " FROM branch_chunks c JOIN trajectories t ON t.id = trajectory"
            " ORDER BY trajectory, branch, start"
        ):
            is_first, where = place != (key, branch), f"branch {branch} of trajectory {key}"
            if start != (0 if is_first else end):
                yield f"{where} has a gap at {start}"
            if version is not None and (is_first or branch == 0):
                yield f"{where} begins with tokens that were drawn"
            if version not in (None, pinned):
                yield f"{where} of version {pinned} was drawn by {version}"
            if logprobs != (0 if version is None else tokens) or not tokens:
                yield f"{where} has {tokens} bytes of tokens and {logprobs} of logprobs at {start}"
            if version is not None and (is_first or version != before):
                stretches[key, branch] += 1
            place, before, end = (key, branch), version, start + tokens // 4
        numbers = "SELECT count(*), max(number) FROM turns GROUP BY trajectory"
        if any(last != count - 1 for count, last in self._db.execute(numbers)):
            yield "turns are not numbered through"
        query = (
            "SELECT trajectory, branch, count(*) FROM turns JOIN trajectories t ON t.id = trajectory"
            " WHERE state IN ('ended', 'scored') GROUP BY trajectory, branch"
        )
        turns = {(key, branch): count for key, branch, count in self._db.execute(query)}
        ended = {key for (key,) in self._db.execute("SELECT trajectory FROM responses")}
        cut = Counter[int]()
        for key, branch in turns.keys() | {each for each in stretches if each[0] in ended}:
            missing = stretches[key, branch] - turns.get((key, branch), 0)
            cut[key] += missing
            if missing < 0:
                yield f"branch {branch} of trajectory {key} has {-missing} turns more than stretches"
        # A turn that was cut has tokens and no end, and there is one at a time.
        yield from (f"trajectory {key} has {n} turns without an end" for key, n in cut.items() if n > 1)

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
