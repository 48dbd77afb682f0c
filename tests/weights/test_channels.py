"""Three ways for versions, one behaviour; and what is particular to each."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dora_rl.weights.channel import Channel, Resident
from dora_rl.weights.errors import CannotWrite, UnknownVersion, VersionConflict, WrittenAfter
from dora_rl.weights.memory import InProcess
from dora_rl.weights.shared import SharedMemory
from dora_rl.weights.store import Store

from .versions import history, same_bits


@pytest.fixture(params=["in process", "shared memory", "files"])
def channel(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Channel]:
    if request.param == "in process":
        yield InProcess()
    elif request.param == "files":
        yield Store(tmp_path)
    else:
        with SharedMemory.create(root=tmp_path) as shared:
            yield shared


def test_what_is_published_can_be_fetched_whole_or_as_a_delta(channel: Channel) -> None:
    versions = history(4)
    for number, tensors in enumerate(versions):
        channel.publish(number, tensors)
    assert all(same_bits(channel.fetch(number), tensors) for number, tensors in enumerate(versions))
    base = {name: tensor.clone() for name, tensor in versions[1].items()}
    delta = channel.fetch_delta(3, Resident(version=1, tensors=base))
    assert same_bits(base, versions[1])
    for name, change in delta.items():
        base[name].view(-1).index_copy_(0, change.indices_N, change.values_N)
    assert same_bits(base, versions[3])


def test_versions_come_in_order_and_go_when_retired(channel: Channel) -> None:
    versions = history(3)
    for number, tensors in enumerate(versions):
        channel.publish(number, tensors)
    with pytest.raises(VersionConflict, match="cannot follow version 2"):
        channel.publish(4, versions[0])
    with pytest.raises(VersionConflict, match="newest"):
        channel.retire(2)
    channel.retire(0)
    channel.retire(0)
    with pytest.raises(UnknownVersion):
        channel.fetch(0)
    assert same_bits(channel.fetch(1), versions[1])


def test_within_a_process_nothing_is_copied_and_a_later_write_is_found_out() -> None:
    channel, (tensors,) = InProcess(), history(1)
    channel.publish(0, tensors)
    assert channel.fetch(0)["norm.weight"].data_ptr() == tensors["norm.weight"].data_ptr()
    tensors["norm.weight"].add_(1)
    with pytest.raises(WrittenAfter, match="version 0"):
        channel.fetch(0)


FETCH = """
import sys
import torch
from pathlib import Path
from dora_rl.weights.shared import SharedMemory
channel = SharedMemory.open(sys.argv[1], root=Path(sys.argv[2]))
print([channel.fetch(v)["norm.weight"].view(torch.int16).tolist() for v in channel.versions])
"""

DIE = """
import os, signal, sys
import torch
from pathlib import Path
from dora_rl.weights.shared import SharedMemory
channel = SharedMemory.create(root=Path(sys.argv[1]))
channel.publish(0, {"x": torch.zeros(1000)})
print(channel.name, flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def test_another_process_reads_shared_memory_by_its_name(tmp_path: Path) -> None:
    versions = history(3)
    with SharedMemory.create(root=tmp_path) as channel:
        for number, tensors in enumerate(versions):
            channel.publish(number, tensors)
        run = python(FETCH, channel.name, str(tmp_path))
        assert run.stdout == f"{[each['norm.weight'].view(torch.int16).tolist() for each in versions]}\n"
    assert not list(tmp_path.iterdir())


def test_shared_memory_is_its_users_alone(tmp_path: Path) -> None:
    with SharedMemory.create(root=tmp_path) as channel:
        channel.publish(0, history(1)[0])
        directory = tmp_path / channel.name
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
        directory.chmod(0o755)
        with pytest.raises(CannotWrite, match="not this user's alone"):
            SharedMemory.open(channel.name, root=tmp_path)
        directory.chmod(0o700)
        (tmp_path / "dora-weights-link").symlink_to(directory)
        with pytest.raises(CannotWrite):
            SharedMemory.open("dora-weights-link", root=tmp_path)
        (tmp_path / "dora-weights-link").unlink()
    for name in (channel.name, "../elsewhere", "other"):
        with pytest.raises(UnknownVersion):
            SharedMemory.open(name, root=tmp_path)


def test_what_a_dead_owner_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    living = SharedMemory.create(root=tmp_path)
    living.publish(0, history(1)[0])
    died = python(DIE, str(tmp_path), "kill")
    assert died.returncode == -signal.SIGKILL
    assert (tmp_path / died.stdout.strip()).exists()
    with SharedMemory.create(root=tmp_path) as channel:
        assert {path.name for path in tmp_path.iterdir()} == {living.name, channel.name}
    assert living.versions == (0,)
    living.close()


def test_an_owner_that_exits_without_closing_leaves_nothing(tmp_path: Path) -> None:
    assert python(DIE, str(tmp_path), "exit").returncode == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_take_the_memory_along(tmp_path: Path) -> None:
    with SharedMemory.create(root=tmp_path) as channel:
        channel.publish(0, history(1)[0])
        pid = os.fork()
        if not pid:
            channel.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert channel.versions == (0,)
