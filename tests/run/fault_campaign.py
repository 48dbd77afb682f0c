"""Runs that are struck again and again, at random and at the worst moments, until they end all the same.

A strike is one of these, each at a random moment, soon after a version was published or a turn ended, while a
checkpoint is written, or while the run is being resumed:

    kill      SIGKILL for one worker: an instance, the trainer, a reward or episode worker, an agent
    stop      SIGSTOP for one worker; it is continued after a while, or left to be found out as silent
    behead    SIGKILL for the orchestrator alone, some workers stopped before: all of them must end
    fell      SIGKILL for the whole tree
    interrupt SIGINT or SIGTERM for the command, which ends in order

After the last three the run is resumed. The end is judged by `sql_verdict`, and by the audit and a replay.

Several runs go side by side. Each strikes none but the processes below its own command, and what is planned
for it depends on the seed and its number alone.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from dora_rl.observe.live.completions import read_completions
from dora_rl.run.open_run import replay_live

from .campaign import RUNS_AT_ONCE, side_by_side, table
from .learning import KINDS, RECIPE, TRAIN, begin, command_line, num_published, num_told, resume
from .sql_verdict import lost_turns, violations
from .verdict import check_journal

_END_S = 20.0
"""Seconds within which everything of a run is gone once its command is."""


@dataclass(frozen=True)
class StruckKind:
    """What is run, and what is done to it."""

    sets: tuple[str, ...]
    victims: tuple[str, ...] = KINDS
    """What is in the command lines of workers that are struck alone."""
    strikes: tuple[str, ...] = ("kill", "kill", "kill", "stop", "stop", "behead", "fell", "interrupt")
    moments: tuple[str, ...] = ("any", "any", "publish", "checkpoint")
    moment_s: float = 6.0
    """Seconds for which a moment is waited for: it may not come any more."""
    steps: int = 24
    recipe: str = RECIPE
    entry: tuple[str, ...] = TRAIN
    """What Python is started with to train."""

    @property
    def assignments(self) -> tuple[str, ...]:
        return (
            f"steps={self.steps}",
            "checkpoints.every=3",
            "control.silence_s=5",
            "patience.max_deaths=1000",
            # Several runs share the cores.
            "devices.instance_threads=1",
            "devices.trainer_threads=1",
            *self.sets,
        )


ROWS = StruckKind(sets=("batch.groups=4", "batch.group_size=4", "data.train.options={rows: 30}"))
_EPISODES = f"""
model: tiny
batch: {{groups: 3, group_size: 4}}
control: {{max_staleness: 2}}
data: {{train: {{name: count, options: {{rows: 64, held_out_rows: 4}}}}}}
episode: {{function: '{Path(__file__).with_name("playing.py")}:play', max_turns: 8, max_context_tokens: 256}}
response: {{max_new_tokens: 24, stop_strings: [a, b, c]}}
algorithm: grpo
trainer: {{serving_dtype: float32, micro_batch_tokens: 8192}}
cluster: {{slots: 16}}
devices: {{kind: cpu, instances: 2, memory_gib: 4}}
evaluation: {{every: 6, max_rows: 3}}
"""
_AGENT = str(Path(__file__).with_name("http_agent.py"))
EPISODES = StruckKind(
    recipe=_EPISODES,
    # With all checkpoints all tokens stay, and every branch can be judged.
    # Nobody is stopped, so silence is only that of a busy machine. Who dies is started again at once: pauses
    # between deaths in a row would be most of the time.
    sets=("checkpoints.keep=100", "control.silence_s=60", "patience.deaths_s=1"),
    victims=("workers.instance", "workers.trainer", "workers.episode_worker"),
    strikes=("kill",) * 8 + ("behead", "fell"),
    moments=("turn", "turn", "reply", "publish"),
    # Not before episodes go on again after the last strike.
    moment_s=60.0,
    steps=18,
)
SCRIPTED = replace(
    EPISODES,
    entry=(str(Path(__file__).with_name("scripted_train.py")),),
    sets=("devices.instances=1", "response.max_new_tokens=40", "control.silence_s=60"),
    victims=("scripted_instance", "scripted_trainer", "workers.episode_worker"),
    steps=150,
)
"""The same with an instance and a trainer that compute nothing, and so are there again in no time."""
AGENTS = replace(
    SCRIPTED,
    sets=(
        *SCRIPTED.sets,
        "episode.function=agent",
        f"episode.options={{command: ['{sys.executable}', '{_AGENT}']}}",
    ),
    victims=(*SCRIPTED.victims, "http_agent.py"),
    steps=18,
)
"""The same with programs that take their turns over HTTP."""


@dataclass
class Tally:
    """What happened in all runs. Their threads only append, which needs no lock."""

    signals: list[tuple[str, str]] = field(default_factory=list)
    """Which signal for whom, and at which moment."""
    resumed: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    """Runs that came to their last step and broke nothing."""
    wrong: list[str] = field(default_factory=list)
    turns: list[Counter[str]] = field(default_factory=list)
    """Of each run of episodes: turns that ended, and what was lost of them."""

    def figures(self) -> str:
        return (
            f"{len(self.signals)} signals, {len(self.resumed)} resumes, {len(self.finished)} runs finished,"
            f" {len(self.wrong)} violations"
        )

    def __str__(self) -> str:
        turns = sum(self.turns, Counter[str]())
        lost = "\n" + ", ".join(f"{count} {what}" for what, count in turns.items()) if turns else ""
        return table("signals", Counter(self.signals)) + f"\n{self.figures()}{lost}"


class FaultCampaign:
    """Runs side by side until there were enough signals or the time is over; then all are left to end."""

    def __init__(
        self, place: Path, *, seed: int, num_signals: int, until: float, kind: StruckKind = ROWS
    ) -> None:
        self._place = place
        self._kind = kind
        self._seed = seed
        self._num_signals = num_signals
        self._until = until
        self._numbers = count(1)
        self.tally = Tally()

    def run(self) -> None:
        side_by_side(self._lane, range(RUNS_AT_ONCE))

    def _lane(self, _: int) -> None:
        """One run after the other."""
        while not self._is_enough():
            number = next(self._numbers)
            root, draw = self._place / f"run{number}", random.Random(f"{self._seed}/{number}")
            StruckRun(root, draw, self.tally, self._kind).go(number, self._is_enough)
            print(f"{root.name}: so far {self.tally.figures()}", flush=True)

    def _is_enough(self) -> bool:
        return len(self.tally.signals) >= self._num_signals or time.monotonic() > self._until


class StruckRun:
    """One run, from its beginning to its end through all that is done to it."""

    def __init__(self, root: Path, draw: random.Random, tally: Tally, kind: StruckKind) -> None:
        self._root = root
        self._kind = kind
        self._draw = draw
        self._tally = tally
        self._moment = ""

    def go(self, seed: int, is_enough: Callable[[], bool]) -> None:
        """Strike until it is enough, let it end, and judge it."""
        kind = self._kind
        self._command = begin(
            self._root, *kind.assignments, f"seed={seed}", text=kind.recipe, entry=kind.entry
        )
        try:
            self._strike_until(is_enough)
            code, _, said = self._command.ended(within_s=240)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self._accuse(f"it hung: {error}: {self._command.said()[-1500:]}")
            self._command.kill_all()
            return
        found = [f"ended with {code}: {said[-1500:]}"] if code else self._violations()
        for each in found:
            self._accuse(each)
        if not found:
            self._tally.finished.append(self._root.name)

    def _strike_until(self, is_enough: Callable[[], bool]) -> None:
        self._command.wait_until((self._root / "journal.sqlite").exists, limit_s=240)
        is_resumed = False
        while not (self._command.is_over or is_enough()):
            self._moment = self._await_moment(is_resumed)
            if self._command.is_over or num_published(self._root) >= self._kind.steps - 1:
                break
            is_resumed = self._strike()
            if is_resumed:
                self._tally.resumed.append(self._root.name)
                self._command = resume(self._root, entry=self._kind.entry)

    def _accuse(self, what: str) -> None:
        self._tally.wrong.append(f"{self._root.name}: {what}")
        print(self._tally.wrong[-1], flush=True)

    # --- strikes ---

    def _await_moment(self, is_resumed: bool) -> str:
        """Wait for a moment to strike; its name."""
        if is_resumed and self._draw.random() < 0.5:
            time.sleep(self._draw.uniform(0.0, 4.0))
            return "resume"
        match self._draw.choice(self._kind.moments):
            case "publish":
                before = num_published(self._root)
                if self._has_come(lambda: num_published(self._root) > before):
                    time.sleep(self._draw.uniform(0.0, 0.05))
                    return "publish"
            case "turn" | "reply" as name:
                what = "TurnEnded" if name == "turn" else "EnvironmentReplied"
                before = num_told(self._root, what)
                if self._has_come(lambda: num_told(self._root, what) > before):
                    time.sleep(self._draw.choice((0.0, self._draw.uniform(0.0, 1.0))))
                    return name
            case "checkpoint":
                if self._has_come(lambda: any((self._root / "checkpoints").glob(".step_*"))):
                    return "checkpoint"
            case _:
                time.sleep(self._draw.uniform(0.0, 1.5))
        return "any"

    def _has_come(self, is_so: Callable[[], bool]) -> bool:
        """Within a while: what is waited for may not come in this run."""
        until = time.monotonic() + self._kind.moment_s
        while not is_so():
            if self._command.is_over or time.monotonic() > until:
                return False
            time.sleep(0.005)
        return True

    def _strike(self) -> bool:
        """Do something to the run; whether it has to be resumed."""
        draw, command = self._draw, self._command
        match draw.choice(self._kind.strikes):
            case "kill":
                self._send(self._worker(), signal.SIGKILL)
                return False
            case "stop":
                pid = self._worker()
                self._send(pid, signal.SIGSTOP)
                if draw.random() < 0.7:
                    time.sleep(draw.uniform(0.0, 2.0))
                    self._send(pid, signal.SIGCONT)
                return False
            case "behead":
                workers = _started(command.workers())
                for pid in draw.sample(list(workers), draw.randint(0, len(workers))):
                    self._send(pid, signal.SIGSTOP)
                    # The system wakes what is stopped when its owner dies, not what is about to stop: a
                    # worker that starts, and has not asked yet to be woken, would stay.
                    _await_stopped(pid)
                self._send(command.pid, signal.SIGKILL)
            case "fell":
                workers = _started(command.workers())
                for pid in (command.pid, *workers):
                    self._send(pid, signal.SIGKILL)
            case _:
                workers = _started(command.workers())
                self._send(command.pid, draw.choice((signal.SIGINT, signal.SIGTERM)))
                if draw.random() < 0.3:
                    time.sleep(draw.uniform(0.0, 1.0))
                    self._send(command.pid, signal.SIGINT)
        self._await_end(workers)
        return True

    def _worker(self) -> int | None:
        found = self._command.workers(self._draw.choice(self._kind.victims))
        return self._draw.choice(found) if found else None

    def _send(self, pid: int | None, number: signal.Signals) -> None:
        if pid is None:
            return
        victim = "orchestrator" if pid == self._command.pid else _role(pid)
        try:
            os.kill(pid, number)
            self._tally.signals.append((f"{number.name} {victim}", self._moment))
        except ProcessLookupError:
            return  # It was faster.

    def _await_end(self, workers: dict[int, str]) -> None:
        """Wait for the struck command and all it had started."""
        _, _, said = self._command.ended(within_s=120)
        # Before the first line of `dora`, which is `main`, an interrupt is answered by Python alone.
        is_too_early = said.rstrip().endswith("KeyboardInterrupt") and "in main" not in said
        if "Traceback" in said and not is_too_early:
            self._accuse(said[-1500:])
        until = time.monotonic() + _END_S
        while left := {pid: at for pid, at in workers.items() if _started([pid]).get(pid) == at}:
            if time.monotonic() > until:
                names = ", ".join(f"{_role(pid)} ({_state(pid)})" for pid in left)
                self._accuse(f"outlived their owner, struck at {self._moment}: {names}")
                for pid in left:
                    self._send(pid, signal.SIGKILL)
                return
            time.sleep(0.02)

    # --- the end ---

    def _violations(self) -> list[str]:
        found = violations(self._root / "journal.sqlite")
        if self._kind is not ROWS:
            self._tally.turns.append(lost_turns(self._root / "journal.sqlite"))
        try:
            check_journal(self._root)
            assert replay_live(self._root).difference is None, "control decides otherwise than it did"
        except AssertionError as error:
            found.append(f"by the audit: {error}")
        lines = [json.loads(line) for line in (self._root / "metrics.jsonl").read_text().splitlines()]
        steps = [line["step"] for line in lines if "step_time" in line]
        if steps != list(range(1, self._kind.steps + 1)):
            found.append(f"metrics.jsonl has the steps {steps}")
        if self._kind.entry != TRAIN:
            return found  # Who follows a run and writes its texts down is part of the command.
        written = {group.step for group in read_completions(self._root / "completions.jsonl")}
        if written != set(steps):
            found.append(f"completions.jsonl lacks {set(steps) - written}")
        return found


def _role(pid: int) -> str:
    """What a worker is, by its module."""
    module = command_line(pid).partition("-m\0")[2].partition("\0")[0].rpartition(".")[2]
    if "http_agent.py" in command_line(pid):
        return "agent"
    return module.removesuffix("_worker").removesuffix("_main") or "other"


def _started(pids: list[int]) -> dict[int, str]:
    """When those that are there, and no zombies, were started: a number alone may be another's by now."""
    return {pid: fields[19] for pid in pids if (fields := _status(pid)) and fields[0] != "Z"}


def _await_stopped(pid: int) -> None:
    until = time.monotonic() + 5.0
    while _state(pid) not in ("T", "Z", "gone") and time.monotonic() < until:
        time.sleep(0.001)


def _state(pid: int) -> str:
    """One letter, as `ps` has it: `T` is stopped."""
    return _status(pid)[0] if _status(pid) else "gone"


def _status(pid: int) -> list[str]:
    """Of a process, from its state on, as the system has it; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
