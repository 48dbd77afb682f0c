"""Processor time of this process and everything it started: what a machine's cores have to share."""

import os
from pathlib import Path

_PROC = Path("/proc")


def used_s() -> float | None:
    """Seconds so far, of all of them that live; None where the system does not say."""
    if not (_PROC / "self" / "stat").exists():
        return None
    found = dict(filter(None, map(_read, _PROC.glob("[0-9]*/stat"))))
    parents = {pid: parent for pid, (parent, _) in found.items()}
    ours = (ticks for pid, (_, ticks) in found.items() if _is_below(pid, os.getpid(), parents))
    return sum(ours) / os.sysconf("SC_CLK_TCK")


def _read(stat: Path) -> tuple[int, tuple[int, int]] | None:
    """A process, its parent, and its ticks; None if it is gone."""
    try:
        # The name, in parentheses, may hold anything.
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(stat.parent.name), (int(fields[1]), int(fields[11]) + int(fields[12]))


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid != root:
        if pid not in parents:
            return False
        pid = parents[pid]
    return True
