"""Every file of a run that was killed is damaged, one at a time, and the run is resumed.

What comes of it is one of two: the run ends with the very weights of one that was left alone, every step in
its files; or it is refused in a sentence that names the file and a way out. Never a traceback, never another
run. Versions are generated and trained in lockstep, by an engine whose tokens do not depend on what it
computes beside them, so there is one right result, bit for bit.
"""

import json
import random
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from dora_rl.store.journal import Journal

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
devices: {{kind: cpu, instances: 1, memory_gib: 4}}
scoring: {{processes: 1}}
evaluation: {{every: 2, max_rows: 4}}
checkpoints: {{every: 2, keep: 2}}
run: {{trackers: ['{Path(__file__).with_name("rewards.py")}:silent_tracker']}}
patience: {{max_deaths: 2}}
"""


class Campaign:
    """A killed run, what it becomes when it is left alone, and trials of copies of it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.killed = place / "killed"
        recipe = place / "recipe.yaml"
        recipe.write_text(_RECIPE)
        command = Command(self.killed, str(recipe), "--json", "--set", f"run.directory={self.killed}")
        command.wait_until(lambda: num_published(self.killed) >= 5, limit_s=240)
        said = command.said()
        command.kill_all()
        assert 0 < num_published(self.killed) < STEPS, f"it was to be killed in the middle: {said}"
        alone = self._copy("alone")
        code, _, said = resume(alone).ended(within_s=240)
        assert code == 0, said
        self._weights = _weights(alone)
        self.files = sorted(
            path.relative_to(self.killed) for path in self.killed.rglob("*") if path.is_file()
        )

    def trial(self, file: Path, how: str, draw: random.Random) -> str:
        """Damage one file of a copy and resume it: `resumed` or `refused`; an AssertionError says else."""
        root = self._copy("trial")
        damage(root / file, how, draw)
        code, _, said = resume(root).ended(within_s=240)
        if code == 0:
            check_ended_right(root, self._weights)
            return "resumed"
        check_refused(root, file, said)
        return "refused"

    def _copy(self, name: str) -> Path:
        root = self._place / name
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.killed, root)
        return root


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


def check_refused(root: Path, file: Path, said: str) -> None:
    """A sentence with the name of the file, and a way out."""
    assert "Traceback" not in said, said
    lines = said.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, said
    name = file.name.removesuffix("-wal").removesuffix("-shm")
    assert name in errors[0], f"{file} is not named: {said}"
    assert any(line.startswith("hint: ") for line in lines), said
    assert "goes on" not in lines[-1], f"it would not: {said}"


def _weights(root: Path) -> dict[str, torch.Tensor]:
    return load_file(root / f"checkpoints/step_{STEPS:05}/model.safetensors")
