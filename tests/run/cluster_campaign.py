"""A run on a cluster whose nodes die at random; a cluster whose head dies, and an orchestrator that does.

One strike after another: a node with all that runs on it, two at once, Ray's own process of a node and
nothing else, a connection between the orchestrator and a worker or its agent, the orchestrator, or the head
of the cluster with the orchestrator. Nodes that died are replaced; the run is resumed. When it comes to its
end too early it is given more steps.
"""

import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from dora_rl.run.resume_changes import change_run
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup, write_setup

from ..raylets import Raylets
from .conftest import staged

VICTIM = str(Path(__file__).with_name("victim.py"))
CPUS = (0, 2, 2, 2)
"""Cores of the head, where the orchestrator is, and of the nodes that work."""
LEFT_S = 5.0
"""Seconds after which nothing of a dead orchestrator may run any more."""
_STRIKES = {"node": 10, "two nodes": 2, "raylet": 3, "connection": 3, "orchestrator": 2, "head": 1}
"""Kinds of strikes, and how often each comes relative to the others."""
_GO_ON_S = 120.0
_MORE_STEPS = 25


class ClusterCampaign:
    """One run, and what was done to it."""

    def __init__(self, setup: RunSetup, *, seed: int, num_deaths: int, until: float) -> None:
        self._setup = setup
        self._root = Path(setup.run_directory)
        self._draw = random.Random(seed)
        self._num_deaths = num_deaths
        self._until = until
        self.strikes = Counter[str]()
        self.num_deaths = 0
        """Nodes that died."""
        self.num_resumes = 0
        self.wrong: list[str] = []
        """What must not be."""
        self._steps = setup.recipe.steps

    def run(self) -> None:
        """Strike until enough nodes died or the time is over; then let the run come to its end."""
        self._cluster = Raylets(*CPUS)
        first = self._root.with_suffix(".json")
        write_setup(self._setup, first)
        staged(self._setup)
        self._process = self._begun(first)
        try:
            while self.num_deaths < self._num_deaths and time.monotonic() < self._until:
                if self._draw.random() < 0.7 and not self._goes_on():
                    self.wrong.append(f"no step within {_GO_ON_S:g} s of {dict(self.strikes)}")
                    return
                if self._process.poll() is not None:
                    self._extend()
                    continue
                (kind,) = self._draw.choices(list(_STRIKES), list(_STRIKES.values()))
                self._strike(kind)
                self.strikes[kind] += 1
            while not LiveLayout(root=self._root).is_finished and not self.wrong:
                said = self._process.communicate(timeout=600)[1]
                if self._process.returncode:
                    self.wrong.append(
                        f"the orchestrator ended with {self._process.returncode}: {said[-2000:]}"
                    )
        finally:
            self._process.kill()
            self._process.communicate()
            self._check_nothing_is_left()
            self._cluster.close()

    def _strike(self, kind: str) -> None:
        working = self._cluster.nodes[1:]
        match kind:
            case "node":
                self._kill(self._draw.choice(working))
            case "two nodes":
                self._kill(*self._draw.sample(working, 2))
            case "raylet":
                self._cluster.kill_raylet(self._draw.choice(working))
                self._replace(1)
            case "connection":
                cut_one(self._process.pid, self._draw)
            case "orchestrator":
                self._process.kill()
                self._resume()
            case "head":
                self._process.kill()
                # The others cannot go on without it.
                self._cluster.close()
                self.num_deaths += 1
                self._check_nothing_is_left()
                self._cluster = Raylets(*CPUS)
                self._resume()

    def _kill(self, *nodes: str) -> None:
        for node in nodes:
            self._cluster.kill(node)
        self._replace(len(nodes))

    def _replace(self, number: int) -> None:
        self.num_deaths += number
        for _ in range(number):
            self._cluster.add(2)

    def _resume(self) -> None:
        self._process.communicate()
        self._check_nothing_is_left()
        self.num_resumes += 1
        self._process = self._begun(self._root)

    def _extend(self) -> None:
        """Give the run more steps where it came to its end."""
        if not self._judge_end():
            self._until = 0.0
            return
        self._steps += _MORE_STEPS
        change_run(self._root, {"steps": self._steps})
        self._process = self._begun(self._root)

    def _judge_end(self) -> bool:
        """Whether the orchestrator came to the run's end."""
        said, code = self._process.communicate()[1], self._process.returncode
        is_good = code == 0 and LiveLayout(root=self._root).is_finished
        if not is_good:
            self.wrong.append(f"the orchestrator ended with {code}: {said[-2000:]}")
        return is_good

    def _begun(self, where: Path) -> subprocess.Popen[str]:
        command = [sys.executable, VICTIM, str(where), "[]", self._cluster.address]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _goes_on(self) -> bool:
        """Whether another version is published in time, or the run ends."""
        before, until = self._published(), time.monotonic() + _GO_ON_S
        while self._published() <= before and self._process.poll() is None:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def _published(self) -> int:
        events = LiveLayout(root=self._root).events
        return events.read_text().count('"Published"') if events.exists() else 0

    def _check_nothing_is_left(self) -> None:
        if left := left_over(LEFT_S):
            self.wrong.append(f"{LEFT_S:g} s after its owner's end: {left}")


def left_over(within_s: float) -> list[str]:
    """Workers of a cluster's runs that are left on this machine after so long."""
    until = time.monotonic() + within_s
    while (left := _workers()) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _workers() -> list[str]:
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = each.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if re.search(r"dora_rl\.run\.workers\.\w+\0tcp:(?!127\.)", command):
            found.append(command.replace("\0", " "))
    return found


def cut_one(pid: int, draw: random.Random) -> None:
    """Cut a connection of a process to somebody who dialled it, as a network does that fails."""
    listed = subprocess.run(["ss", "-Htnp", "state", "established"], capture_output=True, text=True).stdout
    ours = [line.split()[2:4] for line in listed.splitlines() if f"pid={pid}," in line]
    if ours:
        here, there = (each.rpartition(":")[2] for each in draw.choice(ours))
        subprocess.run(["ss", "-K", "-t", f"sport = :{here} and dport = :{there}"], capture_output=True)
