"""What this machine has, and what of it is free: cores, memory, disk, GPUs.

Limits of a container count as the machine's own. What holds nothing but copies of files is free.
"""

import os
import shutil
from pathlib import Path

from dora_rl.core.record import Record

_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_MEMORY_FILES = {
    "memory.max": ("memory.current", "memory.stat", ""),
    "memory/memory.limit_in_bytes": ("memory/memory.usage_in_bytes", "memory/memory.stat", "total_"),
}
"""Files of a container's memory, by its limit's: bytes in use, their kinds, and the prefix of those names."""
_GIVEN_BACK = ("active_file", "inactive_file", "slab_reclaimable")
"""Kinds of memory in use that the kernel gives up when memory is asked for."""


class Gpu(Record, frozen=True):
    """One CUDA device."""

    name: str
    memory_bytes: int
    free_bytes: int | None = None
    """Bytes of device memory that nobody uses; None where that is not known."""

    @property
    def usable_bytes(self) -> int:
        """Bytes a run may use: those that are free, or all where that is not known."""
        return self.memory_bytes if self.free_bytes is None else min(self.memory_bytes, self.free_bytes)


def num_cores() -> int:
    """The number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Bytes of memory of the machine, or of the container where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [text for file in _MEMORY_FILES if (text := _text(cgroup / file)).isdigit()]
    return min([physical, *map(int, limits)])


def free_memory_bytes(cgroup: Path = _CGROUP, proc: Path = _PROC) -> int:
    """Bytes of memory that machine and container have free; all of it where that cannot be known.

    What this very process has counts as free: it asks before a run, and is gone by then.
    """
    machine = _table(proc / "meminfo").get("MemAvailable:")
    frees = [machine * 1024] if machine is not None else []
    for limit_file, (used_file, kinds_file, prefix) in _MEMORY_FILES.items():
        limit, used = _text(cgroup / limit_file), _text(cgroup / used_file)
        if limit.isdigit() and used.isdigit():
            kinds = _table(cgroup / kinds_file)
            frees.append(int(limit) - int(used) + sum(kinds.get(prefix + kind, 0) for kind in _GIVEN_BACK))
    own = 1024 * _table(proc / "self/status").get("RssAnon:", 0)
    total = memory_bytes(cgroup)
    return max(0, min([total, *(free + own for free in frees)]))


def free_disk_bytes(path: Path) -> int:
    """Free bytes on the disk where `path` is, or would be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def gpus() -> list[Gpu]:
    """The CUDA devices torch sees; loads torch."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        Gpu(name=each.name, memory_bytes=each.total_memory, free_bytes=_free_gpu_bytes(index))
        for index, each in enumerate(found)
    ]


def _free_gpu_bytes(index: int) -> int | None:
    import torch

    try:
        return torch.cuda.mem_get_info(index)[0]
    except RuntimeError:
        # A device that takes no second process, or has no room for one.
        return None


def _table(path: Path) -> dict[str, int]:
    """Parse lines of a name and a number."""
    lines = (line.split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
