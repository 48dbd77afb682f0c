"""The command line, called in this process, and a small project for it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from dora_rl.cli import main as cli
from dora_rl.model.tiny import save_tiny

RECIPE = """
model: {model}
steps: 2
batch: {{groups: 2, group_size: 2}}
data: {{train: {{name: rows.jsonl}}}}
rewards: [{{function: judge.py:length}}]
response: {{max_new_tokens: 8}}
trainer: {{serving_dtype: float32, micro_batch_tokens: 256}}
cluster: {{slots: 8}}
scoring: {{processes: 1}}
devices: {{kind: cpu, memory_gib: 8}}
"""
JUDGE = "def length(completions, solution, **columns):\n    return [float(len(c)) for c in completions]\n"


class Called(NamedTuple):
    exit_code: int
    out: str
    err: str


@pytest.fixture
def dora(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, _quick_preparation: None
) -> Callable[..., Called]:
    """`dora("simulate", "--json")` as a shell would see it."""

    def call(*arguments: object) -> Called:
        monkeypatch.setattr(sys, "argv", ["dora", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            sys.exit(cli.main())
        printed = capsys.readouterr()
        return Called(int(stopped.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> Path:
    """A directory with a recipe, rows and a reward, to be spoiled by the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DORA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(model=model))
    (tmp_path / "judge.py").write_text(JUDGE)
    rows = [{"prompt": f"{i}:", "solution": str(i)} for i in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    save_tiny(directory)
    return directory
