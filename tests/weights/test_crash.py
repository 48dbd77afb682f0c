"""Whatever fails while a version is published, nothing that was announced is lost and publishing goes on."""

import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

from dora_rl.weights.atomic_files import Files
from dora_rl.weights.chain import AnchorPolicy
from dora_rl.weights.errors import CannotWrite
from dora_rl.weights.packed_sections import Data
from dora_rl.weights.store import Store

from .versions import history, same_bits

POLICY = AnchorPolicy(every=2, chain_share=1e9)
VERSIONS = history(4)


class Killed(BaseException):
    """The process is no more."""


class FailingFiles(Files):
    """Fails at one operation; if it is fatal, at every later one too, as a dead process would."""

    def __init__(self, fails_at: int, *, is_fatal: bool) -> None:
        super().__init__()
        self._fails_at = fails_at
        self._is_fatal = is_fatal
        self.num_operations = 0

    def _before(self) -> None:
        self.num_operations += 1
        if self._is_fatal and self.num_operations >= self._fails_at:
            raise Killed
        if self.num_operations == self._fails_at:
            raise OSError(28, "No space left on device")

    def append(self, descriptor: int, chunk: Data) -> None:
        try:
            self._before()
        except BaseException:
            super().append(descriptor, chunk[: len(chunk) // 2])
            raise
        super().append(descriptor, chunk)

    def sync(self, descriptor: int) -> None:
        self._before()
        super().sync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        self._before()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        if self._is_fatal:
            self._before()
        super().remove(path)


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """In memory where there is such a place: a kill, unlike a power cut, does not ask what is on the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


def publish_all(store: Store, announced: set[int]) -> None:
    """Publish every version, retire the first ones, and say so when it is done."""
    for number, tensors in enumerate(VERSIONS):
        if number not in announced:
            store.publish(number, tensors)
            announced.add(number)
    store.retire(0)
    store.retire(1)


def check(store: Store, announced: set[int]) -> None:
    for number in announced - {0, 1} | {number for number in store.versions if number < 2}:
        assert same_bits(store.fetch(number), VERSIONS[number])


def failures(
    run: Callable[[FailingFiles, Path], None], quick_path: Path, *, is_fatal: bool
) -> Iterator[Path]:
    """Run with a failure at the first operation, the second, ... until one run has none."""
    for fails_at in range(1, 10_000):
        files, directory = FailingFiles(fails_at, is_fatal=is_fatal), quick_path / str(fails_at)
        run(files, directory)
        yield directory
        if files.num_operations < fails_at:
            assert fails_at > 40, "so few operations cannot have published four versions"
            return


def test_a_death_at_any_file_operation_loses_nothing_announced(quick_path: Path) -> None:
    announced: set[int] = set()

    def run(files: FailingFiles, directory: Path) -> None:
        announced.clear()
        with Store(directory, policy=POLICY, files=files) as store:
            try:
                publish_all(store, announced)
            except Killed:
                return

    for directory in failures(run, quick_path, is_fatal=True):
        with Store(directory, policy=POLICY) as store:
            check(store, announced)
            for number in range(len(VERSIONS)):
                if number not in announced:
                    store.publish(number, VERSIONS[number])
            publish_all(store, set(range(len(VERSIONS))))
            check(store, set(range(len(VERSIONS))))
            assert store.versions == (2, 3)
        assert not list(directory.glob(".*"))


def test_a_full_disk_at_any_moment_is_an_error_and_a_retry_goes_on(quick_path: Path) -> None:
    messages: list[str] = []

    def run(files: FailingFiles, directory: Path) -> None:
        announced: set[int] = set()
        with Store(directory, policy=POLICY, files=files) as store:
            try:
                publish_all(store, announced)
            except CannotWrite as error:
                messages.append(error.message)
                check(store, announced)
                publish_all(store, announced)
            check(store, announced)
            assert store.versions == (2, 3)

    for directory in failures(run, quick_path, is_fatal=False):
        assert {int(path.name[1:9]) for path in directory.glob("*.anchor")} == {2}
    assert len(messages) > 40
    assert all(str(quick_path) in each and "No space left" in each for each in messages)


class ListingFiles(Files):
    """Says what it did, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def append(self, descriptor: int, chunk: Data) -> None:
        self.done.append("append")
        super().append(descriptor, chunk)

    def sync(self, descriptor: int) -> None:
        self.done.append("sync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync")
        super().sync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        self.done.append("rename")
        super().rename(old, new)


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_publish_returns(
    tmp_path: Path,
) -> None:
    files = ListingFiles()
    with Store(tmp_path, files=files) as store:
        for number, tensors in enumerate(VERSIONS[:2]):
            files.done.clear()
            store.publish(number, tensors)
            without_repeats = [what for what, _ in groupby(files.done)]
            assert without_repeats == ["append", "sync", "rename", "sync directory"]
        files.done.clear()
        store.publish(1, VERSIONS[1])
        # It may be there by a rename that nobody waited for.
        assert files.done == ["sync directory"]


class Nursery:
    """A process that starts publishers quickly, by forking, having loaded everything once."""

    def __init__(self, directory: Path) -> None:
        paths = [str(Path(__file__).parents[1]), *filter(None, sys.path)]
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "weights.publisher", str(directory)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, lifetime_s: float) -> list[list[str]]:
        """Start a publisher, kill it, and return what it announced."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        time.sleep(lifetime_s)
        os.kill(pid, signal.SIGKILL)
        lines = []
        while (line := self._process.stdout.readline().split()) != ["ended"]:
            lines.append(line)
        return lines

    def close(self) -> None:
        self._process.communicate()


@pytest.mark.parametrize("num_kills", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_publishers_lose_nothing_announced(num_kills: int, quick_path: Path) -> None:
    chance = random.Random(0)
    versions = history(400)
    announced: set[int] = set()
    asked: set[int] = set()
    nursery = Nursery(quick_path)
    longest_s = 0.1
    for _ in range(num_kills):
        lines = nursery.run(chance.uniform(0, longest_s))
        for word, number in lines:
            (announced if word == "published" else asked).add(int(number))
        if not lines:
            # A busy machine: who dies before the first word shows nothing.
            longest_s *= 1.5
        store = Store(quick_path)
        assert set(store.versions) >= announced - asked
        for number in store.versions:
            assert same_bits(store.fetch(number), versions[number])
    nursery.close()
    assert len(announced) > num_kills / 4
