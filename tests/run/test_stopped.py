"""A stopped instance (SIGSTOP) is noticed in time, whatever it was doing; STOPS=60 stops more of them."""

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from dora_rl.core.decisions import Decision, Load, Start, Take
from dora_rl.core.inputs import Fault, Input, InstanceJoined, Tick
from dora_rl.core.recipe import Checkpoints, Control
from dora_rl.launch.local import LOCAL, LocalHandle
from dora_rl.launch.protocol import Handle, WorkerSpec
from dora_rl.launch.waiting import Interrupts
from dora_rl.run.live_run import run_live
from dora_rl.run.run_setup import DeviceLayout

from .conftest import MakeSetup, staged

NUM_INSTANCES = 3
NOTICED_S = 10.0
MOMENTS = ("generating", "loading", "training", "ticking", "two at once", "starting")


class StoppingLaunch:
    """A launch of local workers, and a watcher that stops instances one moment after the other."""

    def __init__(self, moments: Sequence[str], interrupts: Interrupts, seed: int) -> None:
        self._left = list(moments)
        self._interrupts = interrupts
        self._draw = random.Random(seed)
        self._pids: dict[str, int] = {}
        self._joined: set[str] = set()
        self._stopped: dict[str, list[tuple[str, float]]] = {}
        """What each was doing that is stopped, and when; a new one may be stopped before the old is told."""
        self._aims_at_start = False
        self._not_before = 0.0
        self.noticed: list[tuple[str, float]] = []
        """Each stop: what the instance was doing, and seconds until its end was told."""

    def start(self, worker: WorkerSpec, replies: Any) -> Handle:
        handle = LOCAL.start(worker, replies)
        assert isinstance(handle, LocalHandle)
        self._pids[worker.name] = handle.pid
        if self._aims_at_start and worker.name.startswith("instance"):
            self._aims_at_start = False
            self._stop(worker.name, "starting", self._draw.uniform(0.0, 4.0))
        return handle

    def watch(self, event: Input, decisions: Sequence[Decision]) -> None:
        if isinstance(event, InstanceJoined):
            self._joined.add(f"instance {event.instance}")
            self._not_before = time.monotonic() + self._draw.uniform(0.0, 1.0)
        elif isinstance(event, Fault) and event.worker in self._stopped:
            moment, since = self._stopped[event.worker].pop(0)
            if not self._stopped[event.worker]:
                del self._stopped[event.worker]
            self._joined.discard(event.worker)
            self.noticed.append((moment, time.monotonic() - since))
        if len(self._joined) < NUM_INSTANCES or self._stopped or time.monotonic() < self._not_before:
            return
        if not self._left:
            if not self._interrupts.count:
                self._interrupts.ask()
        elif found := _struck(self._left[0], event, decisions):
            self._strike(self._left.pop(0), found)

    def _strike(self, moment: str, instances: Sequence[int]) -> None:
        # It cannot be stopped as it starts before it is ended: what is stopped first is counted as well.
        self._aims_at_start = moment == "starting"
        for number in instances:
            name = moment.replace("starting", "ticking")
            self._stop(f"instance {number}", name, self._draw.uniform(0.0, 0.1))

    def _stop(self, name: str, moment: str, after_s: float) -> None:
        pid = self._pids[name]
        self._stopped.setdefault(name, []).append((moment, time.monotonic() + after_s))

        def stop() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

        timer = threading.Timer(after_s, stop)
        timer.daemon = True
        timer.start()


def _struck(moment: str, event: Input, decisions: Sequence[Decision]) -> Sequence[int]:
    """The instances that are stopped now, if this is the moment."""
    match moment:
        case "generating":
            return [each.instance for each in decisions if isinstance(each, Start)][:1]
        case "loading":
            return [each.instance for each in decisions if isinstance(each, Load)][:1]
        case "training":
            return [1] if any(isinstance(each, Take) for each in decisions) else []
        case "two at once":
            return [0, 2] if any(isinstance(each, Start) for each in decisions) else []
    return [0] if isinstance(event, Tick) else []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("schedule", ["dora", "sync"])
def test_a_stopped_instance_is_noticed_within_ten_seconds(make_setup: MakeSetup, schedule: Any) -> None:
    num_stops, draw = int(os.environ.get("STOPS", "6")), random.Random(schedule)
    moments = [MOMENTS[number % len(MOMENTS)] for number in range(num_stops)]
    draw.shuffle(moments)
    interrupts = Interrupts()
    launch = StoppingLaunch(moments, interrupts, seed=num_stops)
    setup = make_setup(
        steps=100_000,
        # Silent after a minute: also where the machine is busy, only what was stopped is given up.
        control=Control(schedule=schedule, max_staleness=2, rebalance_period_s=0.3, silence_s=60.0),
        checkpoints=Checkpoints(every=1000),
        layout=DeviceLayout(instances=NUM_INSTANCES),
    )
    run_live(setup, staged(setup), [launch.watch], launch=launch, interrupts=interrupts)
    interrupts.close()
    for moment in sorted({moment for moment, _ in launch.noticed}):
        seconds = sorted(seconds for each, seconds in launch.noticed if each == moment)
        print(f"{schedule}, {moment}: {len(seconds)} stops, {seconds[0]:.1f} to {seconds[-1]:.1f} s")
    assert len(launch.noticed) >= num_stops
    assert max(seconds for _, seconds in launch.noticed) < NOTICED_S
