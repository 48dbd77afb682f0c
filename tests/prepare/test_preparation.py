"""Before a run: reading rows and the warm start may take long while they move; a death has its reason."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dora_rl.core.errors import DoraError, ModelError, UserError
from dora_rl.core.recipe import Control, Patience, Recipe
from dora_rl.core.recipe.data import DataConfig, SourceConfig
from dora_rl.core.recipe.live import WarmStart
from dora_rl.launch.local import LOCAL, LocalHandle, LocalLaunch
from dora_rl.launch.protocol import Handle, Launch, WorkerSpec
from dora_rl.model.characters import ALPHABET, character_tokenizer
from dora_rl.model.tiny import save_tiny
from dora_rl.model.tokenizer import save_tokenizer
from dora_rl.prepare import planner, preparation
from dora_rl.prepare.planner import RunPlanner
from dora_rl.prepare.preparation import Preparation, Tell
from dora_rl.run.live_run import run_live
from dora_rl.run.open_run import OpenRun
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.run_layout import LiveLayout

from ..run.conftest import MakeSetup

Prepare = Callable[..., None]
ROWS = "rows = [{'prompt': str(i), 'solution': str(i)} for i in range(8)]\n"


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _quick_preparation: None) -> Prepare:
    """Prepare a run, telling often."""
    monkeypatch.setattr(preparation, "_TELL_EVERY_S", 0.2)

    def prepare(recipe: Recipe, tell: Tell = lambda text: None, launch: Launch = LOCAL) -> None:
        with Preparation(recipe, str(tmp_path / "run"), launch=launch) as preparing:
            preparing.plan(tell)
            made = LiveLayout(root=preparing.finish(tell))
            assert PromptTable.read(made.prompts).train
            assert made.tokenizer.is_file()
            assert (made.initial_model / "model.safetensors").is_file() == bool(recipe.warm_start.steps)
        assert not made.root.exists()

    return prepare


class NoLaunch:
    """Starts nothing."""

    def start(self, worker: WorkerSpec, replies: Any) -> Handle:
        raise DoraError("no worker starts here")


def rows_of(tmp_path: Path, code: str) -> DataConfig:
    (tmp_path / "rows.py").write_text(code)
    return DataConfig(train=SourceConfig(name=f"{tmp_path / 'rows.py'}:rows"))


def test_rows_are_read_once_for_the_plan_and_the_run(
    prepare: Prepare, make_setup: MakeSetup, tmp_path: Path
) -> None:
    noted = f"open({str(tmp_path / 'reads')!r}, 'a').write('read ')\n"
    prepare(make_setup(data=rows_of(tmp_path, noted + ROWS), warm_start=WarmStart(steps=1)).recipe)
    assert (tmp_path / "reads").read_text() == "read "


def test_rows_are_tokenized_once_for_the_plan_the_warm_start_and_the_run(
    make_setup: MakeSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, tokenize_rows = list[int](), planner.tokenize_rows

    def counting(rows: Any, *others: Any) -> Any:
        counted.append(len(rows))
        return tokenize_rows(rows, *others)

    monkeypatch.setattr(planner, "tokenize_rows", counting)
    recipe = make_setup(warm_start=WarmStart(steps=1)).recipe
    planning, target = planner.RunPlanner(recipe, str(tmp_path / "run")), tmp_path / "inputs"
    target.mkdir()
    plan = planning.plan()
    planning.write_inputs(target)
    with pytest.raises(DoraError, match="no worker starts here"):
        run_live(plan.setup, target, launch=NoLaunch())
    assert counted == [plan.num_rows, plan.num_held_out] == [64, 8]
    again = OpenRun(Path(plan.setup.run_directory))
    assert again.prompts.table == PromptTable.read(LiveLayout(root=target).prompts)
    assert not again.past.is_resumed, (
        "nothing has happened: it asks for its first evaluation as a new run does"
    )
    again.close()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_long_warm_start_is_told_of_and_outlasts_the_limit_of_its_steps(
    prepare: Prepare, make_setup: MakeSetup
) -> None:
    limit_s, told = 2.0, list[tuple[float, str]]()
    prepare(
        make_setup(warm_start=WarmStart(steps=600, update_rows=8), patience=Patience(step_s=limit_s)).recipe,
        lambda text: told.append((time.monotonic(), text)),
    )
    steps = [(at, text) for at, text in told if text.startswith("working on the warm start: ")]
    assert steps[-1][0] - steps[0][0] > limit_s, "the machine is too fast for this test: more steps"
    done = [int(text.split()[-2].partition("/")[0]) for _, text in steps]
    assert done == sorted(done)
    assert all(text.endswith("/600 ...") for _, text in steps)


class NotingLaunch(LocalLaunch):
    """Keeps what it started."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[LocalHandle] = []

    def start(self, worker: WorkerSpec, replies: Any) -> LocalHandle:
        self.started.append(super().start(worker, replies))
        return self.started[-1]


def test_a_death_during_the_warm_start_says_so_and_how(prepare: Prepare, make_setup: MakeSetup) -> None:
    launch = NotingLaunch()

    def kill(text: str) -> None:
        if "warm start" in text:
            os.kill(launch.started[0].pid, signal.SIGKILL)

    with pytest.raises(
        DoraError, match=r"was killed by SIGKILL while working on the warm start: \d+/6000"
    ) as raised:
        prepare(make_setup(warm_start=WarmStart(steps=6000, update_rows=8)).recipe, kill, launch)
    assert len(launch.started) == 1, "one process does it all"
    assert "memory" in str(raised.value.hint)


def test_rows_whose_code_ends_the_process_are_named_with_the_exit_code(
    prepare: Prepare, make_setup: MakeSetup, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ends = rows_of(tmp_path, "import os, sys\nprint('bye', flush=True)\nos._exit(3)\n")
    with pytest.raises(DoraError, match=r"ended with exit code 3 while reading the rows of .*rows.py:rows"):
        prepare(make_setup(data=ends).recipe)
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "bye\n")


def test_rows_that_never_come_are_waited_for_no_longer_than_allowed(
    prepare: Prepare, make_setup: MakeSetup, tmp_path: Path
) -> None:
    hangs = rows_of(tmp_path, "import time\ntime.sleep(1e6)\n")
    told: list[str] = []
    with pytest.raises(
        UserError, match=r"^reading the rows of .* took longer than patience.step_s = 1 s"
    ) as raised:
        prepare(make_setup(data=hangs, patience=Patience(step_s=1.0)).recipe, told.append)
    assert raised.value.hint == "raise patience.step_s"
    assert any(text.startswith("reading the rows of") for text in told)


def test_a_process_that_stands_still_is_noticed_by_its_silence(
    prepare: Prepare, make_setup: MakeSetup, tmp_path: Path
) -> None:
    stops = rows_of(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    with pytest.raises(DoraError, match=r"no sign of life for control.silence_s = 2 s while reading"):
        prepare(make_setup(data=stops, control=Control(silence_s=2.0)).recipe)


def test_a_tokenizer_of_another_model_is_named(tmp_path: Path, make_setup: MakeSetup) -> None:
    save_tiny(tmp_path / "model")
    save_tokenizer(character_tokenizer(ALPHABET + "\u00e9"), tmp_path / "model")
    rows = rows_of(tmp_path, ROWS.replace("str(i)", "'\u00e9'", 1))
    recipe = replace(make_setup(data=rows).recipe, model=str(tmp_path / "model"))
    with pytest.raises(ModelError, match=r"has token \d+; vocab_size in config.json is \d+"):
        RunPlanner(recipe, str(tmp_path / "run"))
