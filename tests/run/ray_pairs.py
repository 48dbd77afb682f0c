"""The same run on a cluster of raylets and as local processes, in turns: `python -m tests.run.ray_pairs`.

Prints the median step time of each run, and of an echo's round trips through each launch.
"""

import json
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from dora_rl.core.recipe import Batch, RunSettings
from dora_rl.launch.cluster import RayLaunch
from dora_rl.launch.local import LOCAL
from dora_rl.launch.probe import Echo, ProbeWord
from dora_rl.launch.protocol import Launch, WorkerSpec
from dora_rl.launch.waiting import wait_for
from dora_rl.model.tiny import save_tiny
from dora_rl.run.live_run import run_live
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import DeviceLayout

from ..raylets import Raylets
from .conftest import run_setup, staged

STEPS, WARM_UP = 30, 5


def step_s(launch: Launch, model: Path, root: Path) -> float:
    """The median step time of a short run, without its first steps."""
    setup = run_setup(
        model,
        root,
        steps=STEPS,
        batch=Batch(groups=8, group_size=4),
        layout=DeviceLayout(instances=2),
        run=RunSettings(trackers=()),
    )
    run_live(setup, staged(setup), launch=launch)
    lines = LiveLayout(root=root).metrics_log.read_text().splitlines()
    times = [row["step_time"] for row in map(json.loads, lines) if "step_time" in row]
    return statistics.median(times[WARM_UP:])


def round_trip_s(launch: Launch, payload: bytes = b"x" * 100, times: int = 500) -> float:
    """The median time from a message to its answer."""
    probe = launch.start(WorkerSpec(name="probe", module="dora_rl.launch.probe"), ProbeWord)
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        probe.send(Echo(payload=payload))
        while not probe.receive():
            wait_for([probe], [], 1.0)
        taken.append(time.perf_counter() - began)
    probe.end(within_s=0.0)
    return statistics.median(taken[times // 10 :])


def main(pairs: int) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Raylets(0, 2, 2) as cluster,
        closing(RayLaunch(cluster.address)) as ray,
    ):
        model = Path(directory) / "model"
        save_tiny(model)
        launches: dict[str, Launch] = {"local": LOCAL, "Ray": ray}
        steps: dict[str, list[float]] = {name: [] for name in launches}
        for pair in range(pairs):
            # The one that goes first has the colder machine: they take turns at it.
            for name in sorted(launches, reverse=bool(pair % 2)):
                steps[name].append(step_s(launches[name], model, Path(directory) / f"{name}-{pair}"))
            print(f"step: local {steps['local'][-1]:.3f} s, Ray {steps['Ray'][-1]:.3f} s", flush=True)
        trips = {name: [round_trip_s(launch) for _ in range(5)] for name, launch in launches.items()}
    for what, found in (("step", steps), ("round trip", trips)) if pairs else (("round trip", trips),):
        local, on_ray = (1e3 * statistics.median(found[name]) for name in ("local", "Ray"))
        print(f"median {what}: local {local:.3f} ms, Ray {on_ray:.3f} ms: {on_ray / local:.2f}x")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
