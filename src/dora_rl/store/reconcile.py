"""The event log after a crash, brought back in line with the journal.

The log is written without waiting for the disk, so a crash may leave it behind the journal, ahead of it, torn
in the middle of a line, or with blocks that never reached the disk. The journal is the truth: what the two
have in common from the beginning on stays, everything after it is written again from the journal.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dora_rl.core.history import encode_event, encode_header
from dora_rl.core.record import Record
from dora_rl.store.durable import full_disk_named, sync_path
from dora_rl.store.journal import Journal


class Reconciled(Record, frozen=True):
    """The result of bringing an event log in line with the journal."""

    num_kept: int
    """Number of events in the log that agreed with the journal."""
    num_written: int
    """Number of events written to the log from the journal."""
    removed_bytes: int
    """Bytes cut from the end of the log, which the journal does not confirm."""


def reconcile(events_path: Path, journal: Journal) -> Reconciled:
    """Make the event log agree exactly with the journal, ready to be appended to."""
    with full_disk_named(events_path), events_path.open("r+b" if events_path.exists() else "w+b") as file:
        num_blocks, right_bytes = _agreement(file, journal)
        removed_bytes = max(0, file.seek(0, os.SEEK_END) - right_bytes)
        file.truncate(right_bytes)
        file.seek(right_bytes)
        for block in _blocks(journal, num_blocks):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    sync_path(events_path.parent)
    num_kept = max(0, num_blocks - 1)
    return Reconciled(
        num_kept=num_kept, num_written=journal.num_inputs - num_kept, removed_bytes=removed_bytes
    )


def _agreement(file: BinaryIO, journal: Journal) -> tuple[int, int]:
    """How many blocks, and bytes, at the log's beginning agree with the journal."""
    num_blocks = right_bytes = 0
    for block in _blocks(journal, 0):
        if file.read(len(block)) != block:
            break
        num_blocks, right_bytes = num_blocks + 1, right_bytes + len(block)
    return num_blocks, right_bytes


def _blocks(journal: Journal, first: int) -> Iterator[bytes]:
    """The blocks the event log should consist of, from `first` on: the header, then each event's lines."""
    if first == 0:
        yield encode_header(journal.recipe)
    for seq, (told, decided) in enumerate(journal.events(max(0, first - 1)), start=max(0, first - 1)):
        yield encode_event(seq, told, decided)
