"""A key that a reward needs stands in no file of the run."""

from pathlib import Path

import pytest

from .conftest import EVEN_REWARD
from .learning import begin, finished

KEY = "sk-proj-4f9Tq2ZbXw81LmVe"
KEYED = EVEN_REWARD.replace("even_reward", "keyed_reward")


def rewards(key: str) -> str:
    return f"rewards=[{{function: '{KEYED}', per: trajectory, options: {{api_key: '{key}'}}}}]"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_key_from_the_environment_is_in_no_file_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "run"
    small = ("steps=2", "batch.groups=4", "batch.group_size=4", rewards("env:JUDGE_KEY"))
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    code, _, said = begin(root, *small).ended(within_s=60)
    assert code == 2
    assert said.splitlines() == [
        "error: rewards[0].options takes a value from the environment variable JUDGE_KEY, which is not set",
        "hint: set it where the run is started: export JUDGE_KEY=...",
    ]
    monkeypatch.setenv("JUDGE_KEY", KEY)
    assert finished(begin(root, *small), within_s=150)["is_complete"]
    files = [path for path in root.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    named = {path.name for path in files if b"env:JUDGE_KEY" in path.read_bytes()}
    assert {"recipe.yaml", "setup.json", "events.jsonl", "journal.sqlite", "report.html"} <= named
