"""Runs that are struck again and again, at random and at the worst moments, until they end all the same.

A strike is one of these, each at a random moment, soon after a version was published, while a checkpoint is
written, or while the run is being resumed:

    kill      SIGKILL for one worker: an instance, the trainer, a reward worker
    stop      SIGSTOP for one worker; it is continued after a while, or left to be found out as silent
    behead    SIGKILL for the orchestrator alone, some workers stopped before: all of them must end
    fell      SIGKILL for the whole tree
    interrupt SIGINT or SIGTERM for the command, which ends in order

After the last three the run is resumed. The end is judged by `sql_verdict`, and by the audit and a replay.
"""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dora_rl.observe.live.completions import read_completions
from dora_rl.run.open_run import replay_live

from .learning import KINDS, Command, begin, num_published, resume
from .sql_verdict import violations
from .verdict import check_journal

STEPS = 24
_SMALL = (
    f"steps={STEPS}",
    "batch.groups=4",
    "batch.group_size=4",
    "data.train.options={rows: 30}",
    "checkpoints.every=3",
    "control.silence_s=5",
    "patience.max_deaths=1000",
)
_END_S = 20.0
"""Seconds within which everything of a run is gone once its command is."""
STRIKES = ("kill", "kill", "kill", "stop", "stop", "behead", "fell", "interrupt")
MOMENTS = ("any", "any", "publish", "checkpoint")


class FaultCampaign:
    """Runs one after the other, and the figures of all of them."""

    def __init__(self, place: Path, draw: random.Random, until: float) -> None:
        self._place = place
        self._draw = draw
        self._until = until
        self.counted: Counter[str] = Counter()
        """Runs, resumes, signals by what they were, violations."""
        self.wrong: list[str] = []

    def run(self) -> None:
        """Strike runs until the time is over; the last one is left to end."""
        while time.monotonic() < self._until:
            self.counted["runs"] += 1
            root = self._place / f"run{self.counted['runs']}"
            found = list(self._one(root))
            self.wrong += [f"{root.name}: {each}" for each in found]
            self.counted["violations"] += len(found)
            print(f"{root.name}: {self.figures()}", flush=True)

    def figures(self) -> str:
        signals = sum(count for name, count in self.counted.items() if name.startswith("SIG"))
        return f"{signals} signals, " + ", ".join(f"{n} {name}" for name, n in sorted(self.counted.items()))

    def _one(self, root: Path) -> list[str]:
        command = begin(root, *_SMALL, f"seed={self.counted['runs']}")
        command.wait_until(lambda: (root / "journal.sqlite").exists(), limit_s=240)
        while not command.is_over and time.monotonic() < self._until:
            self._await_moment(command)
            if command.is_over or num_published(root) >= STEPS - 1:
                break
            if self._strike(command):
                self.counted["resumes"] += 1
                command = resume(root)
                if self._draw.random() < 0.5:
                    time.sleep(self._draw.uniform(0.0, 4.0))  # Struck again while it is being resumed.
        code, _, said = command.ended(within_s=240)
        if code:
            return [f"ended with {code}: {said[-1500:]}"]
        return self._judged(root)

    # --- strikes ---

    def _await_moment(self, command: Command) -> None:
        match self._draw.choice(MOMENTS):
            case "any":
                time.sleep(self._draw.uniform(0.0, 1.5))
            case "publish":
                before = num_published(command.root)
                self._wait(command, lambda: num_published(command.root) > before)
                time.sleep(self._draw.uniform(0.0, 0.05))
            case "checkpoint":
                self._wait(command, lambda: any((command.root / "checkpoints").glob(".step_*")))

    def _wait(self, command: Command, is_so: Callable[[], bool]) -> None:
        """Until then, or a few seconds: what is waited for may not come in this run."""
        until = time.monotonic() + 6.0
        while not (is_so() or command.is_over or time.monotonic() > until):
            time.sleep(0.003)

    def _strike(self, command: Command) -> bool:
        """Do something to a run; whether it has to be resumed."""
        draw = self._draw
        match draw.choice(STRIKES):
            case "kill":
                self._send(self._worker(command), signal.SIGKILL)
                return False
            case "stop":
                pid = self._worker(command)
                self._send(pid, signal.SIGSTOP)
                if draw.random() < 0.7:
                    time.sleep(draw.uniform(0.0, 2.0))
                    self._send(pid, signal.SIGCONT)
                return False
            case "behead":
                workers = command.workers()
                for pid in draw.sample(workers, draw.randint(0, len(workers))):
                    self._send(pid, signal.SIGSTOP)
                self._send(command.pid, signal.SIGKILL)
                return self._ended(command, workers)
            case "fell":
                workers = command.workers()
                for pid in (command.pid, *workers):
                    self._send(pid, signal.SIGKILL)
                return self._ended(command, workers)
            case _:
                workers = command.workers()
                self._send(command.pid, draw.choice((signal.SIGINT, signal.SIGTERM)))
                if draw.random() < 0.3:
                    time.sleep(draw.uniform(0.0, 1.0))
                    self._send(command.pid, signal.SIGINT)
                return self._ended(command, workers)

    def _worker(self, command: Command) -> int | None:
        found = command.workers(self._draw.choice(KINDS))
        return self._draw.choice(found) if found else None

    def _send(self, pid: int | None, number: signal.Signals) -> None:
        try:
            if pid is not None:
                os.kill(pid, number)
                self.counted[number.name] += 1
        except ProcessLookupError:
            return  # It was faster.

    def _ended(self, command: Command, workers: list[int]) -> bool:
        """Wait for a struck command and all it had started. It is resumed, also one that had just ended."""
        _, _, said = command.ended(within_s=120)
        if "Traceback" in said:
            self.wrong.append(f"{command.root.name}: {said[-1500:]}")
            self.counted["violations"] += 1
        until = time.monotonic() + _END_S
        while left := [pid for pid in workers if _is_worker(pid)]:
            if time.monotonic() > until:
                self.wrong.append(f"{command.root.name}: {len(left)} workers outlived their owner")
                self.counted["violations"] += 1
                for pid in left:
                    self._send(pid, signal.SIGKILL)
            time.sleep(0.02)
        return True

    # --- the end ---

    def _judged(self, root: Path) -> list[str]:
        found = violations(root / "journal.sqlite")
        try:
            check_journal(root)
            assert replay_live(root).difference is None, "control decides otherwise than it did"
        except AssertionError as error:
            found.append(f"by the audit: {error}")
        lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
        steps = [line["step"] for line in lines if "step_time" in line]
        if steps != list(range(1, STEPS + 1)):
            found.append(f"metrics.jsonl has the steps {steps}")
        if (written := {group.step for group in read_completions(root / "completions.jsonl")}) != set(steps):
            found.append(f"completions.jsonl lacks {set(steps) - written}")
        return found


def _is_worker(pid: int) -> bool:
    """Whether a process is there, is no zombie, and still is what it was."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        return (
            "dora_rl" in Path(f"/proc/{pid}/cmdline").read_text()
            and status.rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False
