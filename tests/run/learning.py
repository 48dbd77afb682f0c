"""A run that learns in seconds, through the command line: what is done to it, and what must be true of it.

A model of random weights learns to draw even tokens: the mean reward rises from 0.52 to about 0.87 in 40
steps, and from one step to the next varies by about 0.01.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from dora_rl.core.decisions import Admit
from dora_rl.core.inputs import Published
from dora_rl.run.open_run import replay_live
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import read_setup
from dora_rl.store.journal import Journal

from .conftest import EVEN_REWARD
from .verdict import check_journal

STEPS = 40
LAST_STEPS = 8
"""Whose mean reward is called final."""
KINDS = ("workers.instance", "workers.trainer", "workers.reward_worker")
RECIPE = f"""
model: tiny
steps: {STEPS}
batch: {{groups: 16, group_size: 8}}
control: {{max_staleness: 2, silence_s: 20}}
data: {{train: {{name: count, options: {{rows: 50}}}}}}
rewards: [{{function: '{EVEN_REWARD}'}}]
response: {{max_new_tokens: 16}}
algorithm: grpo
optimizer: {{learning_rate: 1e-3}}
trainer: {{serving_dtype: float32, micro_batch_tokens: 8192}}
cluster: {{slots: 128}}
engine: {{step_tokens: 512}}
devices: {{kind: cpu, instances: 2, memory_gib: 4}}
scoring: {{processes: 2}}
checkpoints: {{every: 5}}
"""


TRAIN = ("-c", "from dora_rl.cli.entry import main; main()", "train")
"""What Python is started with to train."""


class Command:
    """`dora train`, or something like it, in a process of its own, with everything it starts."""

    def __init__(self, root: Path, *arguments: str, entry: tuple[str, ...] = TRAIN) -> None:
        self.root = root
        self._before = num_published(root)
        self.began_at = time.monotonic()
        # Not beside the run, whose disk may be full, and no pipe, which may be.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it has ended
        self._process = subprocess.Popen(
            [sys.executable, *entry, *arguments],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, "DORA_CACHE": str(root.parent / "cache")},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def workers(self, kind: str = "") -> list[int]:
        """What it started, of one kind or all, and what those started."""
        return [pid for pid in _below(self._process.pid) if kind in command_line(pid)]

    def interrupt(self) -> None:
        """As a terminal does: the whole group of the command, to which its workers do not belong."""
        os.killpg(self._process.pid, signal.SIGINT)

    def kill_all(self) -> None:
        """SIGKILL for it and everything below it."""
        for pid in (self._process.pid, *self.workers()):
            _kill(pid)
        self.ended(within_s=10)

    def wait_for_step(self, count: int = 1, limit_s: float = 60.0) -> None:
        """Until so many versions were published since it began, or it is over."""
        self.wait_until(lambda: num_published(self.root) >= self._before + count, limit_s)

    def wait_until(self, is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
        until = time.monotonic() + limit_s
        while not (is_so() or self.is_over):
            assert time.monotonic() < until, f"waited for {limit_s} s: {self.said()}"
            time.sleep(0.02)

    def ended(self, within_s: float) -> tuple[int, str, str]:
        """Its exit code, stdout and stderr."""
        out, _ = self._process.communicate(timeout=within_s)
        said = self.said()
        self._stderr.close()
        return self._process.returncode, out, said

    def said(self) -> str:
        """On stderr, so far."""
        length = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), length, 0).decode(errors="replace")


def begin(
    root: Path,
    *sets: str,
    is_json: bool = True,
    text: str = RECIPE,
    entry: tuple[str, ...] = TRAIN,
) -> Command:
    """A new run of the recipe, or of another one."""
    recipe = root.with_suffix(".yaml")
    recipe.write_text(text)
    assignments = [word for each in (f"run.directory={root}", *sets) for word in ("--set", each)]
    return Command(root, str(recipe), *["--json"] * is_json, *assignments, entry=entry)


def resume(root: Path, *, is_json: bool = True, entry: tuple[str, ...] = TRAIN) -> Command:
    """Nothing but the run is given."""
    return Command(root, "--resume", str(root), *["--json"] * is_json, entry=entry)


def finished(command: Command, within_s: float) -> dict[str, Any]:
    """The summary of a command that has to end well."""
    code, out, said = command.ended(within_s)
    assert code == 0, said
    found: dict[str, Any] = json.loads(out)
    return found


def num_published(root: Path) -> int:
    """As the event log says."""
    return num_told(root, "Published")


def num_told(root: Path, what: str) -> int:
    """How often control was told something, as the event log says, which is read while it is written."""
    log = root / "events.jsonl"
    return log.read_bytes().count(f'"input":"{what}"'.encode()) if log.exists() else 0


# --- what happens to it ---------------------------------------------------------------------------


def strike_at_random(command: Command, draw: random.Random, kills_of_each: int) -> list[str]:
    """Kill workers of every kind, in random order and at random moments; the kinds that were killed.

    A kind is struck again once a version was published since, because three deaths of one worker in a row end
    a run. Different kinds die at any distance, also while another is being started again.
    """
    order = [kind for kind in KINDS for _ in range(kills_of_each)]
    draw.shuffle(order)
    killed, struck_at = [], dict.fromkeys(KINDS, 0)
    for kind in order:
        command.wait_until(lambda kind=kind: num_published(command.root) > struck_at[kind])  # type: ignore[misc]
        time.sleep(draw.uniform(0.0, 1.2))
        command.wait_until(lambda kind=kind: bool(command.workers(kind)))  # type: ignore[misc]
        if command.is_over or num_published(command.root) > STEPS - 3:
            break  # Nobody has to notice a death once the work is done.
        struck_at[kind] = num_published(command.root)
        _kill(draw.choice(command.workers(kind)))
        killed.append(kind)
    return killed


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # It was faster.


def _below(pid: int) -> list[int]:
    try:
        found = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return [each for child in found for each in (child, *_below(child))]


def command_line(pid: int) -> str:
    """Of a process, or nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


# --- what must be true of it ----------------------------------------------------------------------


def check_run(root: Path) -> None:
    """The laws, by the journal; the event log, by control; versions and prompts, by their order."""
    check_journal(root)
    replayed = replay_live(root)
    assert replayed.difference is None
    with Journal.open(root / "journal.sqlite") as journal:
        assert replayed.num_inputs == journal.num_inputs
        versions = [told.version for told, _ in journal.events() if isinstance(told, Published)]
    assert versions == list(range(1, STEPS + 1))
    check_prompts(root)


def check_prompts(root: Path) -> None:
    """Every epoch visits every row once; the last may be cut short."""
    num_rows = len(PromptTable.read(LiveLayout(root=root).prompts).train)
    visited = admitted(root)
    assert len(visited) == STEPS * read_setup(LiveLayout(root=root).setup).recipe.batch.groups
    for first in range(0, len(visited), num_rows):
        epoch = visited[first : first + num_rows]
        assert {number for number, _ in epoch} == {first // num_rows}
        assert len({row for _, row in epoch}) == len(epoch)


def admitted(root: Path) -> list[tuple[int, int]]:
    """Epoch and row of every group, in the order they were admitted."""
    with Journal.open(root / "journal.sqlite") as journal:
        return [
            (decision.epoch, decision.row)
            for _, decisions in journal.events()
            for decision in decisions
            if isinstance(decision, Admit)
        ]


def final_reward(root: Path) -> float:
    """Of the trajectories of the last steps, by the journal."""
    with Journal.open(root / "journal.sqlite") as journal:
        return fmean(
            each.reward
            for each in journal.summaries()
            if each.batch is not None and each.batch >= STEPS - LAST_STEPS and each.reward is not None
        )


def version_files(root: Path) -> dict[str, tuple[int, int]]:
    """What would change if a version were written again."""
    found = {}
    for path in (root / "versions").glob("v*"):
        status = path.stat()
        found[path.name] = (status.st_ino, status.st_mtime_ns)
    return found
