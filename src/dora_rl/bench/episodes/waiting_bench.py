"""The bench of waiting episodes: ten thousand wait, their KV dropped, and two hundred replies come a second.

Everything of a run is real (orchestrator, control, journal on disk, episode processes, codec, sockets), but
for instances and the trainer, which compute nothing. A reply is timed from the moment the episode's code has
it, before it is rendered, to the moment the request that goes on behind it has reached an instance: what is
between is the codec, the way to the orchestrator, its turn of the loop, the commit, and the way out.
"""

import os
import time
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dora_rl.bench.episodes.scripted_instance import TURN_TOKENS, arrivals_file, read_arrivals
from dora_rl.bench.episodes.scripted_launch import ScriptedLaunch
from dora_rl.core.decisions import Decision, Resume, Start
from dora_rl.core.errors import DoraError
from dora_rl.core.inputs import EnvironmentReplied, Input, TurnEnded
from dora_rl.core.recipe.resolution import resolve_recipe
from dora_rl.core.record import Record
from dora_rl.launch.waiting import Interrupts
from dora_rl.prepare.preparation import Preparation
from dora_rl.run.live_run import run_live
from dora_rl.run.run_setup import RunSetup

LATENCY_LIMIT_S = 0.020
MEMORY_LIMIT_BYTES = 1e9
_GROUP_SIZE = 8
_MAX_STALENESS = 3
_INSTANCES = 2
_SLOTS = 128
_HELD_TOKENS = 512
"""Tokens of KV an instance has for each of its slots: next to nothing of what waits can be held."""


class WaitingScope(Record, frozen=True):
    """How many episodes wait, how many replies come a second, and for how long that is measured."""

    episodes: int = 10_000
    replies_per_s: float = 200.0
    seconds: float = 60.0


class WaitingReport(Record, frozen=True):
    """What was measured of the replies, and of the processes between engine and environments."""

    scope: WaitingScope
    waiting: int
    """Least number of episodes that waited while it was measured."""
    replies: int
    replies_per_s: float
    started: int
    """Turns that were started behind their tokens, because their KV had been dropped."""
    resumed: int
    """Turns that went on with the KV they had."""
    queued: int
    """Replies that still waited for a place when it ended: their latencies are not among these."""
    latency_p50_s: float
    latency_p90_s: float
    latency_p99_s: float
    latency_max_s: float
    orchestrator_cpu_share: float
    """Share of one core that the orchestrator took."""
    orchestrator_reply_s: float
    """Its CPU seconds for a reply, the turn behind it included."""
    orchestrator_bytes: int
    environments_bytes: int
    """Memory of the processes that episodes run in; what processes share is divided among them."""
    tokenizer: str
    """The directory of the tokenizer that replies were rendered with."""

    @property
    def is_quick(self) -> bool:
        """Whether replies are answered within the limit."""
        return self.latency_p99_s <= LATENCY_LIMIT_S

    @property
    def is_small(self) -> bool:
        """Whether the memory of everything between engine and environments is within the limit."""
        return self.orchestrator_bytes + self.environments_bytes <= MEMORY_LIMIT_BYTES


class _Stopwatch:
    """Watches the run: measures from the moment enough episodes wait, and ends it when it is enough."""

    def __init__(self, scope: WaitingScope, interrupts: Interrupts, say: Callable[[str], None]) -> None:
        self._scope = scope
        self._interrupts = interrupts
        self._say = say
        self._num_waiting = 0
        self._queued: set[int] = set()
        """Trajectories whose environment replied and whose next turn has not begun."""
        self.least_waiting = 0
        self.began_at: float | None = None
        self.ended_at: float | None = None
        self.cpu_s = 0.0
        self.num_started = self.num_resumed = self.num_queued = 0
        self.orchestrator_bytes = self.environments_bytes = 0

    def watch(self, event: Input, decisions: Sequence[Decision]) -> None:
        match event:
            case TurnEnded():
                self._num_waiting += 1
            case EnvironmentReplied():
                self._num_waiting -= 1
                self._queued.add(event.trajectory)
        self._queued -= {each.trajectory for each in decisions if isinstance(each, Start | Resume)}
        if self.began_at is None and self._num_waiting >= self._scope.episodes:
            self._say(f"{self._num_waiting:,} episodes wait; measuring for {self._scope.seconds:g} s")
            self.began_at, self.cpu_s, self.least_waiting = time.monotonic(), -_cpu_s(), self._num_waiting
        if self.began_at is None or self.ended_at is not None:
            return
        self.least_waiting = min(self.least_waiting, self._num_waiting)
        self.num_started += sum(isinstance(each, Start) for each in decisions)
        self.num_resumed += sum(isinstance(each, Resume) for each in decisions)
        if time.monotonic() > self.began_at + self._scope.seconds:
            self._end()

    def _end(self) -> None:
        self.ended_at = time.monotonic()
        self.cpu_s += _cpu_s()
        self.num_queued = len(self._queued)
        self.orchestrator_bytes = _memory_bytes(os.getpid())
        self.environments_bytes = sum(map(_memory_bytes, _children("episode_worker")))
        self._interrupts.ask()


def bench_waiting(scope: WaitingScope, place: Path, say: Callable[[str], None]) -> WaitingReport:
    """Run so many episodes until all wait, measure for a while, and report; the run is left in `place`."""
    interrupts = Interrupts()
    watch = _Stopwatch(scope, interrupts, say)
    recipe = resolve_recipe(_tree(scope))
    with Preparation(recipe, str(place / "run")) as preparation:
        setup = _as_on_gpus(preparation.plan().setup)
        inputs = preparation.finish()
        run_live(setup, inputs, [watch.watch], launch=ScriptedLaunch(), interrupts=interrupts)
    interrupts.close()
    if watch.began_at is None or watch.ended_at is None:
        raise DoraError("the bench was interrupted before all of it was measured")
    return _report(scope, watch, setup)


def _report(scope: WaitingScope, watch: _Stopwatch, setup: RunSetup) -> WaitingReport:
    root = Path(setup.run_directory)
    began, ended = watch.began_at or 0.0, watch.ended_at or 0.0
    arrivals = [pair for i in range(_INSTANCES) for pair in read_arrivals(arrivals_file(root, i))]
    # One that was on its way at the end is counted by when it was there, or the slowest would be left out.
    latencies = sorted(arrived - at for at, arrived in arrivals if began <= at <= ended - 1.0)
    seconds = ended - began

    def quantile(share: float) -> float:
        return latencies[ceil(share * len(latencies)) - 1]

    return WaitingReport(
        scope=scope,
        waiting=watch.least_waiting,
        replies=len(latencies),
        replies_per_s=len(latencies) / (seconds - 1.0),
        started=watch.num_started,
        resumed=watch.num_resumed,
        queued=watch.num_queued,
        latency_p50_s=quantile(0.5),
        latency_p90_s=quantile(0.9),
        latency_p99_s=quantile(0.99),
        latency_max_s=latencies[-1],
        orchestrator_cpu_share=watch.cpu_s / seconds,
        orchestrator_reply_s=watch.cpu_s / max(1, watch.num_started + watch.num_resumed),
        orchestrator_bytes=watch.orchestrator_bytes,
        environments_bytes=watch.environments_bytes,
        tokenizer=setup.model_directory,
    )


def _tree(scope: WaitingScope) -> dict[str, Any]:
    """The recipe: a bound of three versions, as many groups as episodes shall wait, waits without limit."""
    wait_s = scope.episodes / scope.replies_per_s
    # A few more than shall wait, for some are in a turn.
    turn_s = 0.5
    wanted = scope.episodes + 2.0 * turn_s * scope.replies_per_s
    groups = ceil(wanted / _GROUP_SIZE / (_MAX_STALENESS + 1))
    never_s = 1e6
    return {
        "model": "tiny",
        "steps": 100,
        "batch": {"groups": groups, "group_size": _GROUP_SIZE},
        "control": {
            "max_staleness": _MAX_STALENESS,
            "active_groups": (_MAX_STALENESS + 1) * groups,
            "environment_grace_s": never_s,
        },
        "patience": {"progress_s": never_s},
        "data": {"train": {"name": "tools", "options": {"rows": 8 * groups}}},
        "episode": {
            "function": "dora_rl.bench.episodes.timed_reply:reply_for_ever",
            "options": {"mean_wait_s": wait_s},
            "call_limit_s": never_s,
            "start_limit_s": never_s,
            "max_turns": 100_000,
            "max_context_tokens": 1900,
        },
        "response": {"max_new_tokens": TURN_TOKENS},
        "cluster": {"slots": _SLOTS},
        "devices": {"kind": "cpu", "instances": _INSTANCES},
        "evaluation": {"every": 0},
        "trainer": {"serving_dtype": "float32"},
        "run": {"trackers": []},
    }


def _as_on_gpus(setup: RunSetup) -> RunSetup:
    """The set-up as where instances are GPUs, which so many episodes need, and have little KV for them.

    Nothing looks for the GPUs: the orchestrator only looks at its messages more often.
    """
    limits = setup.engine.limits
    few = replace(limits, num_blocks=_SLOTS * _HELD_TOKENS // limits.block_size)
    return replace(
        setup,
        engine=replace(setup.engine, limits=few),
        devices=replace(setup.devices, instance_device="cuda:0"),
    )


def _cpu_s() -> float:
    return time.process_time()


def _memory_bytes(pid: int) -> int:
    """Memory of a process; what it shares with others is divided among them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])


def _children(marker: str) -> list[int]:
    """Processes that this one started, whose command line has the marker."""
    tasks = Path("/proc/self/task").iterdir()
    pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return [pid for pid in pids if marker in Path(f"/proc/{pid}/cmdline").read_text()]
