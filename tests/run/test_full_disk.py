"""A run on a disk that fills up ends with a sentence, and goes on when there is room."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .learning import begin, check_run, finished, num_published, resume


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 megabytes: the whole run takes about 13."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path, leave_bytes: int) -> Path:
    """A file that takes all the room but so much."""
    ballast = place / "ballast"
    with ballast.open("wb") as file:
        while (free_bytes := os.statvfs(place).f_bavail * os.statvfs(place).f_frsize) > leave_bytes:
            file.write(bytes(min(free_bytes - leave_bytes, 1 << 20)))
            file.flush()
    return ballast


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("leave_bytes", [0, 500_000, 1_500_000], ids=["0 bytes", "0.5 MB", "1.5 MB"])
def test_a_full_disk_ends_the_run_with_a_sentence_and_it_goes_on_when_there_is_room(
    small_disk: Path, leave_bytes: int
) -> None:
    """What finds no room first depends on how much is left: a commit, a version or a checkpoint."""
    root = small_disk / "run"
    command = begin(root)
    command.wait_for_step(3)
    ballast = fill(small_disk, leave_bytes)
    code, out, said = command.ended(within_s=90)
    assert code == 1
    assert out == ""
    known = ("step ", "run directory", "devices: ", "schedule: ", "held out: ", "warning")
    lines = [line for line in said.splitlines() if not line.startswith(known)]
    error, hint = lines[0], lines[-1]
    assert len(lines) == 2, said
    assert error.startswith("error: no space is left")
    assert str(small_disk) in error
    assert hint == f"hint: free some space; then `dora train --resume {root}` goes on"
    code, _, said = resume(root).ended(within_s=90)
    assert code == 1, "there is still no room"
    assert "error: no space is left" in said
    ballast.unlink()
    num_before = num_published(root)
    assert finished(resume(root), within_s=150)["is_complete"]
    assert num_before >= 3
    check_run(root)
