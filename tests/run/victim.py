"""A run in a process of its own, to which something happens: `python victim.py SETUP PLAN [CLUSTER]`.

SETUP is a file with a set-up, whose inputs lie beside its run directory, or a run directory to resume.
PLAN is a JSON list of [when, signal, victim]:
after so many inputs, or when something of this name is told or decided. Victims are `self`, or what is in the
command line of a process below; `journal` is this process, two seconds after the journal was to be told and
before it is. CLUSTER is the address of a Ray cluster whose nodes the run's workers are on. Prints the summary
of the run.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from dora_rl.api.run_place import run_place
from dora_rl.core.decisions import Decision
from dora_rl.core.history import Event
from dora_rl.core.inputs import Input
from dora_rl.core.recipe import Cluster
from dora_rl.launch.local import LOCAL
from dora_rl.run import workers
from dora_rl.run.live_run import resume_live, run_live
from dora_rl.run.run_setup import read_setup
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import AnyPayload

Plan = list[tuple[int | str, str, str]]


def children(marker: str, of: int | None = None) -> list[int]:
    """Processes below this one, or another, whose command lines contain the marker."""
    pid = of or os.getpid()
    found: list[int] = []
    # One that ends meanwhile is no longer below.
    with suppress(FileNotFoundError, ProcessLookupError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            if marker in Path(f"/proc/{child}/cmdline").read_text():
                found.append(child)
            found += children(marker, child)
    return found


class Fate:
    """Counts inputs, and strikes."""

    def __init__(self, plan: Plan) -> None:
        # A name that no process has would strike nobody, and the test would see nothing.
        modules = [f"workers.{path.stem}" for path in Path(workers.__file__).parent.glob("*.py")]
        for _, _, victim in plan:
            is_known = victim in ("self", "journal") or any(name.startswith(victim) for name in modules)
            assert is_known, f"no worker is called {victim}"
        self._plan = plan
        self._num_inputs = 0

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        self._num_inputs += 1
        moments = {self._num_inputs, *(type(each).__name__ for each in (event, *decisions))}
        for moment, name, victim in self._plan:
            if moment in moments:
                pids = [os.getpid()] if victim == "self" else children(victim)
                for pid in pids:
                    os.kill(pid, signal.Signals[name])


def strike_before_the_journal(plan: Plan) -> None:
    """A disk that is slow, and a machine that stops before it is done."""
    names = {moment for moment, _, victim in plan if victim == "journal"}
    append = Journal.append

    def late(self: Journal, events: Sequence[Event], payloads: Sequence[AnyPayload] = ()) -> None:
        if names & {type(told).__name__ for told, _ in events}:
            time.sleep(2.0)
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, events, payloads)

    Journal.append = late  # type: ignore[method-assign]


def main(where: Path, plan: Plan, cluster: str | None = None) -> None:
    strike_before_the_journal(plan)
    watchers = [Fate([each for each in plan if each[2] != "journal"]).watch]
    with run_place(Cluster(ray=cluster), LOCAL, lambda text: None, where.parent) as place:
        if where.is_dir():
            summary = resume_live(where, watchers, launch=place.launch)
        else:
            setup = read_setup(where)
            summary = run_live(setup, Path(f"{setup.run_directory}-inputs"), watchers, launch=place.launch)
    print(msgspec.json.encode(summary).decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), *sys.argv[3:])
