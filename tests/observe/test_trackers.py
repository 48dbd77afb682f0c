"""Every row goes to each tracker once, evaluations at their own step; a resumed run goes on in its own.

The contract with the packages is held twice: by fakes that take only calls the packages take, and by the
packages themselves where they are installed, offline.
"""

import json
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.inputs import Published, Tick
from dora_rl.core.recipe import Recipe, RunSettings
from dora_rl.observe.live import trackers as tracking
from dora_rl.observe.live.completions import CompletedGroup, Completion
from dora_rl.observe.live.metrics_tail import MetricsTail
from dora_rl.observe.live.tracker_kinds import completion_table
from dora_rl.observe.live.trackers import Trackers

RECIPE = Recipe(model="tiny", steps=4)
MEMBER = Completion(text="a\x1b[2J", reward=0.5, values={"right": 0.5}, num_tokens=3, is_truncated=False)
STEPS = [{"step": number, "at": number * 1.0, "reward": number / 10, "kl": None} for number in range(1, 5)]
EVALUATIONS = [{"step": number, "eval/reward": 1.0 + number, "eval/prompts": 2.0} for number in (0, 2, 4)]


class FakeTable:
    """Has the form of W&B's and Trackio's tables."""

    def __init__(self, *, columns: list[str], data: list[list[Any]]) -> None:
        self.rows = [dict(zip(columns, row, strict=True)) for row in data]


class FakeWandb(ModuleType):
    """Takes what W&B takes; a row with a step of W&B's own, which only rises, is none of it."""

    run = None
    Table = FakeTable

    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.step_metrics: dict[str, str | None] = {}
        self.id = "abc"
        self.is_over = False

    def init(self, *, config: dict[str, Any], **arguments: Any) -> "FakeWandb":
        assert config["model"] == "tiny"
        self.begun.append(arguments)
        return self

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.step_metrics[name] = step_metric

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.is_over = True


class FakeTrackio(ModuleType):
    """Takes what Trackio takes: it finds a run by its name."""

    Table = FakeTable

    def __init__(self) -> None:
        super().__init__("trackio")
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.is_over = False

    def init(self, *, project: str, name: str, resume: str, config: dict[str, Any]) -> Any:
        self.begun.append({"project": project, "name": name, "resume": resume})
        print("* created a run")
        return SimpleNamespace(name=name, log=self.log)

    def log(self, values: dict[str, Any], *, step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.is_over = True


class FakeMlflow(ModuleType):
    """Takes what MLflow takes: names of few characters, at most 100 parameters in a call."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.parameters: dict[str, str] = {}
        self.tables: dict[str, dict[str, list[Any]]] = {}
        self.experiments: list[str] = []
        self.is_over = False
        self.is_gone = False

    def active_run(self) -> None: ...

    def set_experiment(self, name: str) -> None:
        self.experiments.append(name)

    def start_run(self, **arguments: Any) -> Any:
        self.begun.append(arguments)
        return SimpleNamespace(info=SimpleNamespace(run_id="f00"))

    def log_dict(self, values: dict[str, Any], file: str) -> None: ...

    def log_params(self, values: dict[str, str]) -> None:
        assert len(values) <= 100
        self.parameters |= values

    def log_metrics(self, values: dict[str, float], *, step: int, run_id: str) -> None:
        if self.is_gone:
            raise ConnectionError("no server")
        assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz_/") for name in values), values
        self.logged.append((step, values))

    def log_table(self, table: dict[str, list[Any]], file: str, *, run_id: str) -> None:
        self.tables[file] = table

    def end_run(self) -> None:
        self.is_over = True


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_PROJECT", "WANDB_NAME", "WANDB_RUN_ID", "WANDB_RESUME", "TRACKIO_PROJECT",
                 "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_NAME", "MLFLOW_TRACKING_URI",
                 "MLFLOW_RUN_ID"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


def fake(monkeypatch: pytest.MonkeyPatch, module: Any) -> Any:
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def trackers(root: Path, *names: str, said: list[str] | None = None, **rest: Any) -> Trackers:
    group = CompletedGroup(step=1, group=0, version=0, prompt="<s>what", completions=(MEMBER, MEMBER))
    return Trackers(
        names, run="demo-1", recipe=RECIPE, metrics=MetricsTail(root / "metrics.jsonl"),
        kept=root / "tracked.json", completions=lambda step: [group],
        tell=print if said is None else said.append, **rest,
    )  # fmt: skip


def write(root: Path, *rows: dict[str, Any]) -> None:
    with (root / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def track(root: Path, *names: str) -> None:
    """A run of four steps that is cut short after the second and resumed; evaluations come a step late."""
    with trackers(root, *names) as first:
        write(root, EVALUATIONS[0], STEPS[0])
        first.watch(Published(at=1.0, version=1, train_s=1.0), [])
        write(root, STEPS[1])
        first.watch(Published(at=2.0, version=2, train_s=1.0), [])
        first.watch(Tick(at=2.0), [])
    # Written, and not passed on when the run was killed.
    write(root, EVALUATIONS[1])
    with trackers(root, *names) as second:
        write(root, STEPS[2])
        second.watch(Published(at=3.0, version=3, train_s=1.0), [])
        write(root, STEPS[3], EVALUATIONS[2])
        second.watch(Published(at=4.0, version=4, train_s=1.0), [])


def test_wandb_gets_evaluations_under_a_step_of_their_own_and_goes_on_in_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = fake(monkeypatch, FakeWandb())
    track(tmp_path, "tensorboard", "wandb")
    assert wandb.begun == [
        {"project": "dora-rl", "name": "demo-1"},
        {"project": "dora-rl", "name": "demo-1", "id": "abc", "resume": "allow"},
    ]
    assert wandb.step_metrics["reward"] == wandb.step_metrics["at"] == "step"
    assert wandb.step_metrics["eval/reward"] == wandb.step_metrics["eval/prompts"] == "eval/step"
    rewards = [(row["step"], row["reward"]) for row in wandb.logged if "reward" in row]
    assert rewards == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    held_out = [(row["eval/step"], row["eval/reward"]) for row in wandb.logged if "eval/reward" in row]
    assert held_out == [(0, 1.0), (2, 3.0), (4, 5.0)]
    tables = [row["completions"] for row in wandb.logged if "completions" in row]
    assert len(tables) == 4
    assert tables[0].rows[0]["prompt"] == "<s>what"
    assert tables[0].rows[0]["completion"] == r"a\e[2J"
    assert tables[0].rows[1]["rewards/right"] == 0.5
    assert wandb.is_over


def test_trackio_gets_rows_at_their_steps_and_goes_on_in_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trackio = fake(monkeypatch, FakeTrackio())
    monkeypatch.setenv("TRACKIO_PROJECT", "mine")
    track(tmp_path, "trackio")
    assert [each["resume"] for each in trackio.begun] == ["never", "allow"]
    assert {(each["project"], each["name"]) for each in trackio.begun} == {("mine", "demo-1")}
    assert [step for step, row in trackio.logged if "reward" in row] == [1, 2, 3, 4]
    assert [step for step, row in trackio.logged if "eval/reward" in row] == [0, 2, 4]
    assert [step for step, row in trackio.logged if "completions" in row] == [1, 2, 3, 4]
    assert trackio.is_over
    assert capsys.readouterr().out == "", "stdout is for the result of the run"


def test_mlflow_gets_rows_parameters_and_tables_and_goes_on_in_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = fake(monkeypatch, FakeMlflow())
    write(tmp_path, {"step": 1, "rewards/a(b)/mean": 1.0})
    with trackers(tmp_path, "mlflow"):
        pass
    assert mlflow.logged == [(1, {"rewards/a_b_/mean": 1.0})]
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "tracked.json").unlink()
    mlflow.logged.clear()
    mlflow.begun.clear()
    track(tmp_path, "mlflow")
    assert mlflow.begun == [{"run_name": "demo-1"}, {"run_id": "f00"}]
    assert mlflow.experiments[0] == "dora-rl"
    assert mlflow.parameters["batch.groups"] == str(RECIPE.batch.groups)
    assert [step for step, row in mlflow.logged if "reward" in row] == [1, 2, 3, 4]
    assert [step for step, row in mlflow.logged if "eval/reward" in row] == [0, 2, 4]
    assert sorted(mlflow.tables) == [f"completions/step_{step:06d}.json" for step in (1, 2, 3, 4)]
    assert mlflow.is_over


def test_what_the_environment_says_goes_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, mlflow = fake(monkeypatch, FakeWandb()), fake(monkeypatch, FakeMlflow())
    for name in ("WANDB_PROJECT", "WANDB_NAME", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_NAME"):
        monkeypatch.setenv(name, "mine")
    with trackers(tmp_path, "wandb", "mlflow"):
        pass
    assert wandb.begun == [{}]
    assert mlflow.experiments == []
    assert mlflow.begun == [{}]


def test_a_run_of_wandb_that_the_caller_opened_is_used_and_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = fake(monkeypatch, FakeWandb())
    wandb.run = wandb
    with trackers(tmp_path, "wandb"):
        write(tmp_path, STEPS[0])
    assert wandb.begun == []
    assert [row["step"] for row in wandb.logged] == [1]
    assert not wandb.is_over


def test_a_tracker_whose_server_is_gone_ends_no_run_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow, said = fake(monkeypatch, FakeMlflow()), []
    with trackers(tmp_path, "mlflow", said=said):
        mlflow.is_gone = True
        write(tmp_path, *STEPS)
    assert said == [
        "warning: mlflow takes no rows: ConnectionError: no server",
        "warning: mlflow lacks 4 rows; metrics.jsonl has them all",
    ]
    assert mlflow.is_over


def test_a_slow_tracker_delays_nothing_and_what_it_lacks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow, said, asked = fake(monkeypatch, FakeMlflow()), [], threading.Event()
    slow = mlflow.log_metrics

    def log_metrics(values: dict[str, float], *, step: int, run_id: str) -> None:
        assert step < 3 or asked.wait(60)
        slow(values, step=step, run_id=run_id)

    mlflow.log_metrics = log_metrics
    with trackers(tmp_path, "mlflow", said=said, last_s=0.2) as opened:
        for row in STEPS:
            write(tmp_path, row)
            began = time.monotonic()
            opened.watch(Published(at=1.0, version=row["step"], train_s=1.0), [])
            assert time.monotonic() - began < 0.5
    assert [step for step, _ in mlflow.logged] == [1, 2]
    # Rows 3 and 4 and their tables.
    assert said == [
        "trackers are 4 rows or tables behind: they have 0.2 s",
        "warning: trackers were too slow for 4 rows or tables, which they lack; "
        "metrics.jsonl and completions.jsonl have them all",
    ]
    assert not mlflow.is_over, "it is in the middle of a call"
    asked.set()
    del mlflow.log_metrics
    with trackers(tmp_path, "mlflow"):
        pass
    assert [step for step, _ in mlflow.logged if step != 3] == [1, 2, 4], "a resumed run makes up for it"


def test_a_queue_that_is_full_leaves_rows_out_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow, said, asked = fake(monkeypatch, FakeMlflow()), [], threading.Event()
    monkeypatch.setattr(tracking, "_MOST_WAITING", 3)
    monkeypatch.setattr(mlflow, "log_metrics", lambda *row, **rest: asked.wait(60))
    with trackers(tmp_path, "mlflow", said=said) as opened:
        for row in STEPS:
            write(tmp_path, row)
            opened.watch(Published(at=1.0, version=row["step"], train_s=1.0), [])
        asked.set()
    (lost,) = said
    assert "too slow for" in lost


def test_a_tracker_that_cannot_be_opened_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb, before = fake(monkeypatch, FakeWandb()), sys.stdout
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UserError, match="mlflow"):
        trackers(tmp_path, "wandb", "mlflow")
    assert wandb.is_over
    assert sys.stdout is before


def test_what_a_built_in_tracker_prints_while_it_logs_does_not_go_to_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trackio = fake(monkeypatch, FakeTrackio())
    printing, printed = threading.Event(), threading.Event()

    def log(values: dict[str, Any], *, step: int) -> None:
        print("* uploaded")
        printing.set()
        assert printed.wait(60)

    monkeypatch.setattr(trackio, "log", log)
    with trackers(tmp_path, "trackio") as opened:
        write(tmp_path, STEPS[0])
        opened.watch(Published(at=1.0, version=1, train_s=1.0), [])
        assert printing.wait(60)
        print("the run's own")
        printed.set()
    assert capsys.readouterr().out == "the run's own\n"


def test_tables_are_bounded_in_rows_characters_and_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = CompletedGroup(
        step=1, group=0, version=0, prompt="x" * 9999,
        completions=tuple(MEMBER for _ in range(1000)),
    )  # fmt: skip
    columns, rows = completion_table([long])
    assert len(rows) == 64
    assert len(rows[0][columns.index("prompt")]) == 4000
    trackio = fake(monkeypatch, FakeTrackio())
    with Trackers(
        ["trackio"], run="x", recipe=Recipe(model="tiny", steps=1003), completions=lambda step: [long],
        metrics=MetricsTail(tmp_path / "metrics.jsonl"), kept=tmp_path / "tracked.json",
    ) as many:  # fmt: skip
        for version in range(1, 1004):
            many.watch(Published(at=1.0, version=version, train_s=1.0), [])
    shown = [step for step, _ in trackio.logged]
    assert (shown[0], shown[-1]) == (1, 1003)
    assert len(shown) <= 52


def test_a_tracker_that_is_not_installed_is_an_error_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="wandb") as error:
        trackers(tmp_path, "wandb")
    assert error.value.hint == "pip install wandb"


def test_a_tracker_without_an_account_is_an_error_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**arguments: Any) -> None:
        raise PermissionError("no API key configured")

    wandb = fake(monkeypatch, FakeWandb())
    wandb.init = refuse
    with pytest.raises(UserError, match="cannot be opened: PermissionError: no API key configured") as error:
        trackers(tmp_path, "wandb")
    assert "WANDB_MODE=offline" in str(error.value.hint)


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
    kept = tmp_path / "tracked.json"
    with Trackers([name], run="demo-1", recipe=recipe, metrics=MetricsTail(path), kept=kept) as opened:
        path.write_text('{"step": 1, "reward": 0.5}\n')
        opened.watch(Published(at=1.0, version=1, train_s=1.0), [])
    assert (tmp_path / "demo-1").read_text() == "1 0.5\n"


def test_a_tracker_of_the_users_own_that_raises_is_named_and_still_closed(tmp_path: Path) -> None:
    (tmp_path / "rash.py").write_text(
        "from pathlib import Path\n"
        "class Rash:\n"
        "    def __init__(self, run, recipe): pass\n"
        "    def __call__(self, values, step): values['reward']\n"
        "    def close(self): (Path(__file__).parent / 'closed').touch()\n"
    )
    write(tmp_path, {"step": 1, "eval/reward": 0.5})
    with (
        pytest.raises(UserError, match=r"rash\.py:Rash' raised KeyError at step 1: 'reward'") as raised,
        trackers(tmp_path, f"{tmp_path}/rash.py:Rash"),
    ):
        pass
    assert "evaluation" in str(raised.value.hint)
    assert (tmp_path / "closed").exists()


def test_a_misspelt_tracker_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="names 'wandbb'") as raised:
        RunSettings(trackers=("wandbb",))
    assert raised.value.hint == "did you mean 'wandb'?"


# --- the packages themselves --------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_the_real_mlflow_keeps_every_row_at_its_step_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/ml.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    track(tmp_path, "mlflow")
    (run,) = mlflow.search_runs(experiment_names=["mine"], output_format="list")
    client = mlflow.MlflowClient()
    held_out = {each.step: each.value for each in client.get_metric_history(run.info.run_id, "eval/reward")}
    rewards = {each.step: each.value for each in client.get_metric_history(run.info.run_id, "reward")}
    assert held_out == {0: 1.0, 2: 3.0, 4: 5.0}
    assert rewards == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
    assert run.data.params["batch.groups"] == str(RECIPE.batch.groups)
    table = mlflow.load_table("completions/step_000001.json", run_ids=[run.info.run_id])
    assert list(table["completion"]) == [r"a\e[2J"] * 2


@pytest.mark.filterwarnings("ignore")
def test_the_real_trackio_keeps_every_row_at_its_step_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_PROJECT", "mine")
    track(tmp_path, "trackio")
    (stored,) = (tmp_path / "trackio").glob("mine*.db")
    with sqlite3.connect(stored) as database:
        rows = [(name, step, json.loads(values)) for name, step, values in
                database.execute("SELECT run_name, step, metrics FROM metrics")]  # fmt: skip
    assert {name for name, _, _ in rows} == {"demo-1"}
    assert {step: row["eval/reward"] for _, step, row in rows if "eval/reward" in row} == {0: 1, 2: 3, 4: 5}
    assert sorted(step for _, step, row in rows if "reward" in row) == [1, 2, 3, 4]
    assert sorted(step for _, step, row in rows if "completions" in row) == [1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore")
def test_the_real_wandb_keeps_every_row_under_its_step_metric_in_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    track(tmp_path, "wandb")
    # What it wrote is whole once the process that writes it has ended.
    wandb.teardown()
    found = list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len({path.name for path in found}) == 1, "both parts have the id of one run"
    assert len(found) == 2, found
    rows, projects = [], set()
    for record in (each for path in found for each in wandb_records(path)):
        if record.HasField("run"):
            projects.add(record.run.project)
        if record.HasField("history"):
            items = record.history.item
            rows.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            )
    assert projects == {"mine"}
    assert {row["eval/step"]: row["eval/reward"] for row in rows if "eval/reward" in row} == {
        0: 1,
        2: 3,
        4: 5,
    }
    assert sorted(row["step"] for row in rows if "reward" in row) == [1, 2, 3, 4]
    assert sum(any(key.startswith("completions") for key in row) for row in rows) == 4


def wandb_records(path: Path) -> Iterator[Any]:
    """The records in a file that W&B wrote offline: a LevelDB log after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""
