"""What the nodes of a cluster are like for a run: reached as its workers will be, and asked.

On each node a probe is started in the way of any worker, so what is measured is the link that a run has.
"""

import fcntl
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dora_rl.core.errors import DoraError, UserError
from dora_rl.core.record import Record
from dora_rl.launch.cluster import RayLaunch
from dora_rl.launch.dialled import DialledHandle
from dora_rl.launch.probe import Echo, Look, Looked, ProbeWord
from dora_rl.launch.protocol import Place, WorkerSpec
from dora_rl.launch.ray_words import Node
from dora_rl.launch.waiting import wait_for

_START_S = 60.0
"""Seconds within which probes must have answered."""
_BRIEF_S = 15.0
"""Seconds for which a run waits for them before it starts: who is slow shows later."""
_NUM_ROUND_TRIPS = 50
_PAYLOAD_BYTES = 8 * 2**20


class NodeReport(Record, frozen=True):
    """What a probe on a node saw, and how fast it answered; or why it did not."""

    node: Node
    problem: str | None = None
    is_reached: bool = True
    """Whether a probe was started there; a node that is full, or gone, tells nothing of itself."""
    sees_directory: bool = False
    keeps_locks: bool = False
    """Whether a lock on a file of the directory, held here, kept the node out."""
    clock_skew_s: float = 0.0
    """By how much the node's clock is ahead of this machine's."""
    round_trip_s: float = 0.0
    bytes_per_s: float = 0.0
    """There and back, half of it each way."""
    software: str = ""


def check_nodes(
    launch: RayLaunch, directory: Path, *, is_measured: bool = True, within_s: float = _START_S
) -> list[NodeReport]:
    """Ask every node that can have a worker; `directory` is what all of them must share with this machine."""
    asked = [node for node in launch.nodes() if node.cpus]
    with _marked(directory) as (path, content):
        probes = [(node, _probe(launch, node, path)) for node in asked]
        until = time.monotonic() + within_s
        try:
            first = [(node, probe, _answer(probe, until)) for node, probe in probes]
            return [_report(*each, content, is_measured=is_measured) for each in first]
        finally:
            for _, probe in probes:
                probe.end(within_s=0.0)


def check_shared(launch: RayLaunch, directory: Path) -> None:
    """A UserError that names the nodes which do not see what is written to `directory` here.

    Nodes that cannot be asked now, because they are gone or full, are not judged.
    """
    blind = [
        f"{each.node.host} ({each.problem or 'it is not there'})"
        for each in check_nodes(launch, directory, is_measured=False, within_s=_BRIEF_S)
        if each.is_reached and not each.sees_directory
    ]
    if blind:
        raise UserError(
            f"nodes of the cluster do not see {directory} as this machine does: {', '.join(blind)}",
            hint="put the run on storage that all nodes share: --set run.directory=...",
        )


@contextmanager
def _marked(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """A locked file in a directory, or in the nearest one above it that is there, and what it holds."""
    place = next(each for each in (directory, *directory.absolute().parents) if each.is_dir())
    path, content = place / f".dora-{secrets.token_hex(8)}", secrets.token_bytes(16)
    try:
        with path.open("w+b", buffering=0) as file:
            file.write(content)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path, content
    except OSError as error:
        raise DoraError(f"cannot write and lock a file in {place}: {error.strerror or error}") from error
    finally:
        path.unlink(missing_ok=True)


def _probe(launch: RayLaunch, node: Node, path: Path) -> DialledHandle:
    place = Place(cpus=None, node=node.id)
    probe = launch.start(
        WorkerSpec(name=f"probe of {node.host}", module="dora_rl.launch.probe", place=place), ProbeWord
    )
    probe.send(Look(path=str(path)))
    return probe


def _report(node: Node, probe: DialledHandle, first: Any, content: bytes, *, is_measured: bool) -> NodeReport:
    if not isinstance(first, Looked):
        return NodeReport(node=node, problem=first, is_reached=probe.is_placed and not probe.is_lost)
    began = time.time()
    probe.send(Look(path="/"))
    told = _answer(probe)
    middle = (began + time.time()) / 2
    report = NodeReport(
        node=node,
        sees_directory=first.content == content,
        keeps_locks=first.is_locked,
        clock_skew_s=told.clock_s - middle if isinstance(told, Looked) else 0.0,
        software=first.software,
    )
    return _measured(report, probe) if is_measured else report


def _measured(report: NodeReport, probe: DialledHandle) -> NodeReport:
    times = sorted(_echo_s(probe, b"x") for _ in range(_NUM_ROUND_TRIPS))
    payload = secrets.token_bytes(_PAYLOAD_BYTES)
    whole_s = min(_echo_s(probe, payload) for _ in range(3))
    fields = {name: getattr(report, name) for name in report.__struct_fields__}
    measured = {"round_trip_s": times[len(times) // 2], "bytes_per_s": 2 * _PAYLOAD_BYTES / whole_s}
    return NodeReport(**fields | measured)


def _echo_s(probe: DialledHandle, payload: bytes) -> float:
    began = time.perf_counter()
    probe.send(Echo(payload=payload))
    _answer(probe)
    return time.perf_counter() - began


def _answer(probe: DialledHandle, until: float | None = None) -> Any:
    """What the probe says next; a sentence where it says nothing more."""
    until = time.monotonic() + _START_S if until is None else until
    while True:
        if words := probe.receive():
            return words[0]
        if not probe.is_alive:
            return probe.end(within_s=1.0)
        if (left_s := until - time.monotonic()) <= 0:
            return "no answer in time"
        wait_for([probe], [], min(1.0, left_s))
