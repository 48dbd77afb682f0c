"""What is free on machines and in containers that are not this one."""

from pathlib import Path

import pytest

from dora_rl.prepare import machine
from dora_rl.prepare.machine import Gpu, free_memory_bytes, memory_bytes

GIB = 2**30


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """64 GiB, of which 10 are free and 40 more hold copies of files; this process has one of its own."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(
        f"MemTotal: {64 * 2**20} kB\nMemFree: {10 * 2**20} kB\nMemAvailable: {50 * 2**20} kB\n"
    )
    (tmp_path / "proc/self/status").write_text(f"Name:\tpython\nRssAnon:\t{2**20} kB\n")
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096}
    monkeypatch.setattr(machine.os, "sysconf", pages.__getitem__)
    return tmp_path / "proc"


def test_copies_of_files_are_free_and_so_is_what_the_one_who_asks_has(proc: Path, tmp_path: Path) -> None:
    assert free_memory_bytes(tmp_path, proc) == 51 * GIB
    assert free_memory_bytes(tmp_path, tmp_path / "none") == memory_bytes(tmp_path) == 64 * GIB


@pytest.mark.parametrize(("directory", "names"), [
    ("", ("memory.max", "memory.current", "")),
    ("memory/", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")),
])  # fmt: skip
def test_in_a_container_its_limit_counts_without_its_cache(
    proc: Path, tmp_path: Path, directory: str, names: tuple[str, str, str]
) -> None:
    limit, used, prefix = names
    (tmp_path / "cgroup" / directory).mkdir(parents=True)
    place = tmp_path / "cgroup" / directory
    (place / limit).write_text(f"{16 * GIB}\n")
    (place / used).write_text(f"{15 * GIB}\n")
    (place / "memory.stat").write_text(
        f"{prefix}anon {5 * GIB}\n{prefix}inactive_file {7 * GIB}\n{prefix}active_file {3 * GIB}\n"
    )
    assert memory_bytes(tmp_path / "cgroup") == 16 * GIB
    assert free_memory_bytes(tmp_path / "cgroup", proc) == (16 - 15 + 10 + 1) * GIB
    (place / limit).write_text("max\n")
    assert free_memory_bytes(tmp_path / "cgroup", proc) == 51 * GIB


def test_this_machine_has_some_memory_free() -> None:
    assert 0 < free_memory_bytes() <= memory_bytes()


def test_a_gpu_of_which_nothing_more_is_known_is_free() -> None:
    assert Gpu(name="some", memory_bytes=GIB).usable_bytes == GIB
    assert Gpu(name="some", memory_bytes=GIB, free_bytes=5).usable_bytes == 5
