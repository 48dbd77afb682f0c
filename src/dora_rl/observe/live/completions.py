"""completions.jsonl: of every train step some groups as text, each completion beside its rewards.

Written as a watcher of the run, at the moment a batch is taken: the journal then holds its tokens, and may
drop them once a checkpoint covers the step. What a crash kept from the file is made up for as long as the
journal has it. Steps count from 1; a file that begins with step 0 is of an
older run, counts from 0, and goes on so.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import field
from msgspec.structs import replace

from dora_rl.core.decisions import Decision, Take
from dora_rl.core.inputs import Input
from dora_rl.core.record import PlainValue, Record
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import FinishedGroup

_KEPT_STEPS = 4
"""Number of steps whose groups stay at hand after they were written: a batch is taken before its publish."""


class Decode(Protocol):
    """A function that turns token ids into text."""

    def __call__(self, ids: Sequence[int], *, with_special: bool = False) -> str:
        """The text of token ids, with or without special tokens."""


class Completion(Record, frozen=True):
    """One member of a group as text, with its reward."""

    text: str
    reward: float | None
    values: dict[str, float | None]
    """Value of each reward function by name."""
    num_tokens: int
    is_truncated: bool
    extras: dict[str, PlainValue] = field(default_factory=dict)
    """What reward functions noted about it with `log_extra`, by column."""


class CompletedGroup(Record, frozen=True):
    """One line of completions.jsonl: a prompt and the policy's completions of it."""

    step: int
    """Train step that took the group, counted from 1: the version the step published."""
    group: int
    version: int
    prompt: str
    """The prompt as the model sees it, with its special tokens."""
    completions: tuple[Completion, ...]


class CompletionLog:
    """Writes some groups of every batch to completions.jsonl; its `watch` is a watcher of the run."""

    def __init__(
        self, path: Path, *, journal: Path, num_trajectories: int, decode: Callable[[], Decode]
    ) -> None:
        """`decode` is called when the first text is decoded: the run writes its tokenizer before."""
        self._path = path
        self._journal = journal
        self._num_trajectories = num_trajectories
        self._make_decode = decode
        self._decode: Decode | None = None
        self._first_step = _first_step(path)
        self._latest: dict[int, list[CompletedGroup]] = {}
        self._is_made_up = False

    def of(self, step: int) -> Sequence[CompletedGroup]:
        """The groups written of a train step, which a run that was resumed may have written before."""
        if step in self._latest or not self._num_trajectories:
            return self._latest.get(step, ())
        return [group for group in read_completions(self._path) if group.step == step]

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        if not self._num_trajectories:
            return
        if not self._is_made_up:
            self._make_up()
            self._is_made_up = True
        for decision in decisions:
            if isinstance(decision, Take) and decision.batch + 1 not in self._latest:
                with Journal.open(self._journal) as journal:
                    self._write(decision.batch, self._chosen(journal, decision.groups))

    def _make_up(self) -> None:
        """Write the steps that are not in the file, or not whole, and of which the journal has the tokens."""
        _cut_torn_line(self._path)
        written: dict[int, dict[int, int]] = {}
        for group in _groups(self._path):
            written.setdefault(group.step, {})[group.group] = len(group.completions)
        with Journal.open(self._journal) as journal:
            for batch, numbers in journal.kept_batches.items():
                found = written.get(batch + self._first_step, {})
                if len(found) < len(numbers) and sum(found.values()) < self._num_trajectories:
                    self._write(batch, self._chosen(journal, numbers))

    def _chosen(self, journal: Journal, numbers: Sequence[int]) -> list[FinishedGroup]:
        """The first groups of a batch, until there are enough trajectories."""
        chosen, room = list[FinishedGroup](), self._num_trajectories
        for number in numbers:
            if room <= 0:
                break
            chosen.append(journal.group(number))
            room -= len(chosen[-1].members)
        return chosen

    def _write(self, batch: int, chosen: Sequence[FinishedGroup]) -> None:
        self._decode = decode = self._decode or self._make_decode()
        groups = [_completed(batch + self._first_step, group, decode) for group in chosen]
        with self._path.open("ab") as file:
            file.writelines(msgspec.json.encode(group) + b"\n" for group in groups)
        self._latest[batch + 1] = groups
        while len(self._latest) > _KEPT_STEPS:
            del self._latest[min(self._latest)]


def read_completions(path: Path) -> list[CompletedGroup]:
    """The groups in a completions.jsonl by step, the latest of those written twice; steps count from 1."""
    found = {(group.step, group.group): group for group in _groups(path)}
    groups = sorted(found.values(), key=lambda group: group.step)
    return groups if _first_step(path) else [replace(group, step=group.step + 1) for group in groups]


def _cut_torn_line(path: Path) -> None:
    """Remove a last line without its end, which the next would be written behind."""
    if path.is_file() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def _groups(path: Path) -> Iterator[CompletedGroup]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                yield msgspec.json.decode(line, type=CompletedGroup)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue


def _first_step(path: Path) -> int:
    """The number of the first step in the file, which is 1, or 0 in files of older runs."""
    first = next(_groups(path), None)
    return 0 if first is not None and first.step == 0 else 1


def load_decode(tokenizer: Path) -> Decode:
    """The function that decodes by a tokenizer.json."""
    from dora_rl.model.tokenizer import open_tokenizer

    loaded = open_tokenizer(tokenizer)

    def decode(ids: Sequence[int], *, with_special: bool = False) -> str:
        return str(loaded.decode(list(ids), skip_special_tokens=not with_special))

    return decode


def _completed(step: int, group: FinishedGroup, decode: Decode) -> CompletedGroup:
    return CompletedGroup(
        step=step,
        group=group.group,
        version=group.version,
        # As the model sees it: a mistake of the chat template shows in its special tokens.
        prompt=decode(group.members[0].prompt, with_special=True) if group.members else "",
        completions=tuple(
            Completion(
                text=decode(member.response.tokens),
                reward=member.reward,
                values=member.values,
                num_tokens=len(member.response.tokens),
                is_truncated=member.is_truncated,
                extras=member.extras,
            )
            for member in group.members
        ),
    )
