"""After a crash the event log is made to say what the journal says, whatever the crash left of it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.history import Event, History, HistoryWriter, encode_event, encode_header
from dora_rl.core.inputs import Tick
from dora_rl.store.journal import Journal
from dora_rl.store.reconcile import Reconciled, reconcile

from .appends import RECIPE, admission, write

NUM_EVENTS = 6


class Run:
    """A journal of six events and the event log that belongs to it."""

    def __init__(self, directory: Path) -> None:
        self.journal = Journal.create(directory / "journal.sqlite", RECIPE)
        write(self.journal, NUM_EVENTS)
        self.right = encode_header(RECIPE) + b"".join(
            encode_event(i, *admission(i)) for i in range(NUM_EVENTS)
        )

    def log(self, directory: Path, content: bytes | None) -> Path:
        path = directory / "events.jsonl"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


def test_a_log_that_agrees_is_left_alone(run: Run, place: Path) -> None:
    path = run.log(place, run.right)
    assert reconcile(path, run.journal) == Reconciled(num_kept=NUM_EVENTS, num_written=0, removed_bytes=0)
    assert path.read_bytes() == run.right


def test_a_log_that_is_ahead_is_cut_back(run: Run, place: Path) -> None:
    ahead = encode_event(NUM_EVENTS, Tick(at=9.0), [])
    path = run.log(place, run.right + ahead)
    assert reconcile(path, run.journal).removed_bytes == len(ahead)
    assert path.read_bytes() == run.right


def test_a_log_that_is_gone_is_written_again(run: Run, place: Path) -> None:
    path = run.log(place, None)
    assert reconcile(path, run.journal) == Reconciled(num_kept=0, num_written=NUM_EVENTS, removed_bytes=0)
    assert path.read_bytes() == run.right


@given(cut=st.floats(0, 1), tail=st.binary(max_size=40))
def test_a_torn_log_is_completed(run: Run, place: Path, cut: float, tail: bytes) -> None:
    left = run.right[: int(cut * len(run.right))] + tail
    path = run.log(place, left)
    done = reconcile(path, run.journal)
    assert path.read_bytes() == run.right
    assert done.num_kept + done.num_written == NUM_EVENTS
    assert not list(place.glob("*.partial"))


@given(at=st.floats(0, 0.999), size=st.integers(1, 300))
def test_blocks_that_never_reached_the_disk_are_written_again(
    run: Run, place: Path, at: float, size: int
) -> None:
    first = int(at * len(run.right))
    holed = (run.right[:first] + bytes(size) + run.right[first + size :])[: len(run.right)]
    path = run.log(place, holed)
    reconcile(path, run.journal)
    assert path.read_bytes() == run.right


def test_a_reconciled_log_is_gone_on_with(run: Run, place: Path) -> None:
    path = run.log(place, run.right[:-30])
    reconcile(path, run.journal)
    more: list[Event] = [(Tick(at=9.0), []), admission(7)]
    with HistoryWriter(path, RECIPE, num_written=run.journal.num_inputs) as log:
        for event, decisions in more:
            log.watch(event, decisions)
        log.flush()
        assert len(list(History(path))) == NUM_EVENTS + 2
    history = History(path)
    assert list(history) == [*run.journal.events(), *more]
    assert history.torn_line is None
