"""What this machine has: cores, memory, disk, GPUs. Limits of a container count as the machine's own."""

import os
import shutil
from pathlib import Path

from dora_rl.core.record import Record

_CGROUP = Path("/sys/fs/cgroup")
_MEMORY_FILES = ("memory.max", "memory/memory.limit_in_bytes")


class Gpu(Record, frozen=True):
    """One CUDA device."""

    name: str
    memory_bytes: int


def num_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Memory of the machine, or of the container where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [text for file in _MEMORY_FILES if (text := _text(cgroup / file)).isdigit()]
    return min([physical, *map(int, limits)])


def free_disk_bytes(path: Path) -> int:
    """Room where `path` is, or would be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def gpus() -> list[Gpu]:
    """The CUDA devices torch sees; loads torch."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [Gpu(name=each.name, memory_bytes=each.total_memory) for each in found]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
