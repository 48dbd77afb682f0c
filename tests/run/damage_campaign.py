"""Every file of a run that was killed is damaged, one at a time, and the run is resumed.

What comes of it is one of two: the run ends with the very weights of one that was left alone, every step in
its files; or it is refused in a sentence that names the file and a way out. Never a traceback, never another
run. Versions are generated and trained in lockstep, by an engine whose tokens do not depend on what it
computes beside them, so there is one right result, bit for bit.
"""

import json
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from dora_rl.store.journal import Journal

from .campaign import side_by_side, table
from .conftest import EVEN_REWARD
from .learning import Command, num_published, resume
from .verdict import check_journal

STEPS = 8
HOW = ("flip", "cut", "empty", "delete")
_RECIPE = f"""
model: tiny
steps: {STEPS}
batch: {{groups: 4, group_size: 4}}
control: {{schedule: sync, silence_s: 20}}
data: {{train: {{name: letters}}}}
warm_start: {{steps: 5}}
rewards: [{{function: '{EVEN_REWARD}'}}]
response: {{max_new_tokens: 16}}
algorithm: grpo
optimizer: {{learning_rate: 1e-3}}
trainer: {{serving_dtype: float32, micro_batch_tokens: 8192}}
engine: {{step_tokens: 512, batch_invariant: true}}
cluster: {{slots: 128}}
devices: {{kind: cpu, instances: 1, instance_threads: 1, trainer_threads: 1, memory_gib: 4}}
scoring: {{processes: 1}}
evaluation: {{every: 2, max_rows: 4}}
checkpoints: {{every: 2, keep: 2}}
run: {{trackers: ['{Path(__file__).with_name("rewards.py")}:silent_tracker']}}
patience: {{max_deaths: 2}}
"""


@dataclass(frozen=True)
class Trial:
    """What came of a damage: the run `resumed`, was `refused`, or anything else, which is `wrong`."""

    file: Path
    how: str
    verdict: str
    said: str
    """Where it was refused: the sentence, and the way out."""

    def __str__(self) -> str:
        return f"{self.how:<6} {self.file}: {self.verdict} {self.said}"

    @property
    def kind(self) -> str:
        """The file, whatever the step, version or instance."""
        return re.sub(r"\d+", "N", str(self.file))


class DamageCampaign:
    """A killed run, what it becomes when it is left alone, and trials of copies of it, side by side."""

    def __init__(self, place: Path, *, seed: int, until: float) -> None:
        self._place = place
        self._seed = seed
        self._until = until
        self.killed = place / "killed"
        self._kill_one()
        alone = shutil.copytree(self.killed, place / "alone")
        code, _, said = resume(alone).ended(within_s=240)
        assert code == 0, said
        self._weights = _weights(alone)
        self.files = sorted(
            path.relative_to(self.killed) for path in self.killed.rglob("*") if path.is_file()
        )

    def run(self, only: str = "", *, first: int = 0) -> list[Trial]:
        """Every file, or those of whose name this is a part, damaged in every way, in the time there is.

        A campaign may be had in parts: `first` is the number of trials, in the seed's order, that were had.
        """
        ways = [(file, how) for file in self.files for how in HOW if only in str(file)]
        random.Random(self._seed).shuffle(ways)
        del ways[:first]
        tried = [trial for trial in side_by_side(self._in_time, ways) if trial]
        print(f"{len(self.files)} files, {len(tried)} of {len(ways)} trials")
        return tried

    def trial(self, file: Path, how: str) -> Trial:
        """Damage one file of a copy and resume it."""
        root = shutil.copytree(self.killed, self._place / f"{how}-{'-'.join(file.parts)}")
        damage(root / file, how, random.Random(f"{self._seed}/{how}/{file}"))
        try:
            verdict, said = self._outcome(root, file)
        except AssertionError as error:
            return Trial(file, how, "wrong", f"{error}")
        shutil.rmtree(root)
        return Trial(file, how, verdict, said.replace(str(root), "RUN"))

    def _outcome(self, root: Path, file: Path) -> tuple[str, str]:
        command = resume(root)
        try:
            code, _, said = command.ended(within_s=240)
        except subprocess.TimeoutExpired as error:
            said = command.said()
            command.kill_all()
            raise AssertionError(f"it hung: {said}") from error
        if code:
            return "refused", check_refused(file, said)
        check_ended_right(root, self._weights)
        return "resumed", ""

    def _in_time(self, way: tuple[Path, str]) -> Trial | None:
        if time.monotonic() > self._until:
            return None
        trial = self.trial(*way)
        print(trial, flush=True)
        return trial

    def _kill_one(self) -> None:
        recipe = self._place / "recipe.yaml"
        recipe.write_text(_RECIPE)
        command = Command(self.killed, str(recipe), "--json", "--set", f"run.directory={self.killed}")
        command.wait_until(lambda: num_published(self.killed) >= 5, limit_s=240)
        said = command.said()
        command.kill_all()
        assert 0 < num_published(self.killed) < STEPS, f"it was to be killed in the middle: {said}"


def figures(trials: list[Trial]) -> str:
    """What came of each kind of file and damage, and what was said where a run was refused."""
    counted = Counter((f"{trial.kind}, {trial.how}", trial.verdict) for trial in trials)
    refusals = Counter(
        f"{trial.kind}, {trial.how}: {trial.said}" for trial in trials if trial.verdict == "refused"
    )
    lines = [f"{count:>3} x {said}" for said, count in sorted(refusals.items())]
    return "\n".join((table("damage", counted), *lines))


def damage(path: Path, how: str, draw: random.Random) -> None:
    """Do something to a file that a disk, or a hand, may do."""
    content = bytearray(path.read_bytes())
    match how:
        case "flip":
            for _ in range(draw.randint(1, 8) if content else 0):
                content[draw.randrange(len(content))] ^= draw.randint(1, 255)
        case "cut":
            del content[draw.randrange(len(content)) if content else 0 :]
        case "empty":
            content.clear()
        case "delete":
            path.unlink()
            return
    path.write_bytes(content)


def check_ended_right(root: Path, weights: dict[str, torch.Tensor]) -> None:
    """The laws, the weights, and a line of every step."""
    check_journal(root)
    found = _weights(root)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights), "it ended with other weights"
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "step_time" in line] == list(range(1, STEPS + 1))
    with Journal.open(root / "journal.sqlite") as journal:
        journalled = journal.step_metrics()
    for line in lines:
        if "step_time" in line:
            assert line == {"step": line["step"], **journalled[line["step"]]}


def check_refused(file: Path, said: str) -> str:
    """A sentence with the name of the file, and a way out; they are given back."""
    assert "Traceback" not in said, said
    lines = said.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, said
    name = file.name.removesuffix("-wal").removesuffix("-shm")
    assert name in errors[0], f"{file} is not named: {said}"
    assert any(line.startswith("hint: ") for line in lines), said
    assert "goes on" not in lines[-1], f"it would not: {said}"
    return f"{errors[0]} {lines[-1]}"


def _weights(root: Path) -> dict[str, torch.Tensor]:
    return load_file(root / f"checkpoints/step_{STEPS:05}/model.safetensors")
