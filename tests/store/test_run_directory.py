"""A run directory is made whole, used by one process, and resumed unless its run is over."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dora_rl.core.history import History
from dora_rl.store.durable import new_directory, write_atomically
from dora_rl.store.errors import RunError
from dora_rl.store.journal import Journal
from dora_rl.store.run_directory import RunDirectory, RunLayout

from .appends import RECIPE, check, write

HOLDER = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from dora_rl.store.run_directory import RunDirectory
run = RunDirectory.resume(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_a_new_run_directory_has_everything_in_its_place(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "runs" / "first", RECIPE) as run:
        layout = run.layout
        assert run.recipe == layout.read_recipe() == RECIPE
        assert all(p.is_dir() for p in (layout.metrics, layout.checkpoints, layout.versions, layout.logs))
        assert list(History(layout.events)) == []
        with Journal.open(layout.journal) as journal:
            assert journal.recipe == RECIPE
            write(journal, 2)
    assert not layout.is_finished
    with RunDirectory.resume(layout.root) as run, Journal.open(run.layout.journal) as journal:
        check(journal, 2)
    assert [p.name for p in layout.root.parent.iterdir()] == ["first"], "no leftovers beside it"


def test_an_empty_directory_may_become_a_run(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, RECIPE).close()
    assert RunLayout(root=tmp_path).read_recipe() == RECIPE


@pytest.mark.parametrize("kind", ["run", "directory", "file"])
def test_what_exists_is_not_overwritten(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "run"
    if kind == "run":
        RunDirectory.create(root, RECIPE).close()
    elif kind == "directory":
        root.mkdir()
        (root / "notes").write_text("mine")
    else:
        root.write_text("mine")
    before = root.read_text() if root.is_file() else sorted(root.rglob("*"))
    with pytest.raises(RunError, match="exists and is not empty"):
        RunDirectory.create(root, RECIPE)
    assert before == (root.read_text() if root.is_file() else sorted(root.rglob("*")))
    assert list(tmp_path.iterdir()) == [root]


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        RunDirectory.create(tmp_path / "file" / "run", RECIPE)


def test_a_directory_that_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no run directory"):
        RunDirectory.resume(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_answered_with_the_run_it_is_of(tmp_path: Path) -> None:
    root = tmp_path / "run"
    RunDirectory.create(root, RECIPE)
    checkpoint = root / "checkpoints" / "step_00002"
    checkpoint.mkdir(parents=True, exist_ok=True)
    with pytest.raises(RunError) as caught:
        RunLayout(root=checkpoint).read_recipe()
    assert caught.value.hint == f"it is inside a run: give {root}"


def test_two_processes_cannot_use_one_run_and_a_crash_leaves_no_lock(tmp_path: Path) -> None:
    root = tmp_path / "run"
    RunDirectory.create(root, RECIPE).close()
    command = [sys.executable, "-c", HOLDER, str(root), *sys.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunError) as refusal:
            RunDirectory.resume(root)
        assert refusal.value.message == f"run directory {root} is in use by process {holder.pid}"
        os.kill(holder.pid, signal.SIGKILL)
    RunDirectory.resume(root).close()


def test_one_process_cannot_hold_a_run_twice(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", RECIPE), pytest.raises(RunError, match=f"{os.getpid()}"):
        RunDirectory.resume(tmp_path / "run")


def test_a_finished_run_is_not_resumed(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with RunDirectory.create(root, RECIPE) as run:
        run.finish({"steps": 12})
        assert json.loads(run.layout.finished.read_text()) == {"steps": 12}
    for _ in range(2):  # The refusal lets go of the lock.
        with pytest.raises(RunError, match="is finished: there is nothing to resume"):
            RunDirectory.resume(root)


def test_an_atomic_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "marker"
    for content in (b"one", b"twenty-two", b""):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_directory_that_was_not_filled_never_appears(tmp_path: Path) -> None:
    def fill_half() -> None:
        with new_directory(tmp_path / "made") as directory:
            (directory / "half").write_text("half")
            assert not (tmp_path / "made").exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill_half()
    assert not list(tmp_path.iterdir())


def test_a_run_that_could_not_be_filled_does_not_exist(tmp_path: Path) -> None:
    def fill(directory: Path) -> None:
        (directory / "setup.json").touch()
        raise ValueError("no set-up")

    with pytest.raises(ValueError, match="no set-up"):
        RunDirectory.create(tmp_path / "run", RECIPE, fill)
    assert not list(tmp_path.iterdir())
