"""Every row of metrics goes to each tracker once."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.inputs import Published, Tick
from dora_rl.core.recipe import Recipe, RunSettings
from dora_rl.observe.live.metrics_tail import MetricsTail
from dora_rl.observe.live.trackers import Trackers


class FakeTracker(ModuleType):
    """Has the calls of W&B and Trackio, and those of MLflow."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.begun: list[str] = []
        self.is_over = False

    def init(self, *, project: str, name: str, config: dict[str, Any]) -> None:
        assert config["model"] == "tiny"
        self.begun.append(name)

    def log(self, values: dict[str, float], *, step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.is_over = True

    def set_experiment(self, name: str) -> None: ...

    def start_run(self, *, run_name: str) -> None:
        self.begun.append(run_name)

    def log_dict(self, values: dict[str, Any], file: str) -> None: ...

    log_metrics, end_run = log, finish


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_each_row_is_logged_once_and_the_tracker_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fake = FakeTracker(name)
    monkeypatch.setitem(sys.modules, name, fake)
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    with Trackers(["tensorboard", name], run="demo-1", recipe=Recipe(model="tiny"), metrics=tail) as trackers:
        path.write_text('{"step": 1, "reward": 0.5, "kl": null}\n')
        trackers.watch(Tick(at=0.0), [])
        assert fake.logged == []
        trackers.watch(Published(at=1.0, version=1, train_s=1.0), [])
        with path.open("a") as file:
            file.write('{"step": 2, "reward": 1}\n')
    assert fake.begun == ["demo-1"]
    assert fake.logged == [(1, {"reward": 0.5}), (2, {"reward": 1.0})]
    assert fake.is_over


def test_a_tracker_that_is_not_installed_is_an_error_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="wandb") as error:
        Trackers(["wandb"], run="x", recipe=Recipe(), metrics=MetricsTail(tmp_path / "metrics.jsonl"))
    assert error.value.hint == "pip install wandb"


def test_a_tracker_of_the_users_own_gets_every_row_and_is_closed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Lines:\n"
        "    def __init__(self, run, recipe):\n"
        "        self.file = open(recipe['run']['directory'] + '/' + run, 'w')\n"
        "    def __call__(self, values, step):\n"
        "        print(step, values['reward'], file=self.file)\n"
        "    def close(self):\n"
        "        self.file.close()\n"
    )
    path = tmp_path / "metrics.jsonl"
    name = f"{tmp_path}/mine.py:Lines"
    recipe = Recipe(model="tiny", run=RunSettings(directory=str(tmp_path), trackers=(name,)))
    with Trackers([name], run="demo-1", recipe=recipe, metrics=MetricsTail(path)) as trackers:
        path.write_text('{"step": 1, "reward": 0.5}\n')
        trackers.watch(Published(at=1.0, version=1, train_s=1.0), [])
    assert (tmp_path / "demo-1").read_text() == "1 0.5\n"


def test_a_tracker_of_the_users_own_that_raises_is_named_and_still_closed(tmp_path: Path) -> None:
    (tmp_path / "rash.py").write_text(
        "from pathlib import Path\n"
        "class Rash:\n"
        "    def __init__(self, run, recipe): pass\n"
        "    def __call__(self, values, step): values['reward']\n"
        "    def close(self): (Path(__file__).parent / 'closed').touch()\n"
    )
    path, name = tmp_path / "metrics.jsonl", f"{tmp_path}/rash.py:Rash"
    path.write_text('{"step": 1, "eval/reward": 0.5}\n')
    with (
        pytest.raises(UserError, match=r"rash\.py:Rash' raised KeyError at step 1: 'reward'") as raised,
        Trackers([name], run="demo-1", recipe=Recipe(model="tiny"), metrics=MetricsTail(path)),
    ):
        pass
    assert "evaluation" in str(raised.value.hint)
    assert (tmp_path / "closed").exists()


def test_a_misspelt_tracker_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="names 'wandbb'") as raised:
        RunSettings(trackers=("wandbb",))
    assert raised.value.hint == "did you mean 'wandb'?"
