"""The library in whole runs: from a script, from `python -c`, in a notebook's kernel."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dora_rl import Run, dry_run
from dora_rl.core.errors import ConfigError, UserError

ROWS = [{"prompt": "a", "solution": "b"}]
SMALL = """
SMALL = dict(
    model="tiny", batch={"groups": 4, "group_size": 4}, max_completion_length=6, slots=32, seed=1,
    trainer={"serving_dtype": "float32", "micro_batch_tokens": 2048}, scoring={"processes": 1},
    instance_threads=1, trainer_threads=1, checkpoints={"every": 100}, progress=False,
)
ROWS = [{"prompt": f"{a}+{b}=", "solution": str(a + b)} for a in range(4) for b in range(4)]
"""


def run_python(arguments: list[str], directory: Path, timeout_s: float = 150.0) -> str:
    """What a Python of its own prints."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=directory, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(180)
def test_a_script_starts_watches_stops_and_resumes_a_run_with_functions_of_its_own(tmp_path):
    script = SMALL + textwrap.dedent("""
        import json
        from dora_rl import DoraError, resume, start

        bonus = 0.25
        heard = []

        def right(completions, solution, **columns):
            return [bonus + (a == b) for a, b in zip(completions, solution)]

        half = lambda completions, **_: [0.5] * len(completions)
        run = start(data=(row for row in ROWS), rewards=[right, half], steps=40,
                    on_step=lambda row: heard.append(row["step"]), **SMALL)
        seen = []
        for step in run:
            seen.append(step["step"])
            if len(seen) == 3:
                run.stop()
                break
        stopped = run.wait()
        assert stopped.state == "interrupted", stopped
        try:
            resume(stopped, progress=False)
        except DoraError as error:
            refusal = error.message
        done = resume(stopped, rewards=[right, half], progress=False)
        print(json.dumps({
            "seen": seen, "heard": heard, "state": done.state, "refusal": refusal,
            "steps": [row["step"] for row in done.metrics], "names": sorted(done.metrics[-1]),
            "least": min(row["reward"] for row in done.metrics), "checkpoint": done.checkpoint.name,
            "completions": len(done.completions), "page": done.report().name,
        }))
    """)
    (tmp_path / "script.py").write_text(script)
    found = json.loads(run_python(["script.py"], tmp_path))
    assert found["seen"] == [1, 2, 3]
    assert found["heard"][:3] == [1, 2, 3]
    assert found["state"] == "complete"
    assert found["steps"] == list(range(1, 41))
    assert {"rewards/right/mean", "rewards/reward/mean", "grad_norm"} <= set(found["names"])
    assert found["least"] >= 0.75
    assert (found["checkpoint"], found["page"]) == ("step_00040", "report.html")
    assert found["completions"] > 0
    assert "right (rewards)" in found["refusal"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run-1"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_functions_of_a_module_beside_the_script_are_found_by_every_worker(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.py").write_text(
        "def even(completions, **columns):\n    return [0.0] * len(completions)\n"
        "def my_loss(logprobs, advantages):\n    return -advantages * logprobs\n"
    )
    script = SMALL + textwrap.dedent("""
        from mine import even, my_loss
        from dora_rl import train
        rewards = [even, {"function": "mine:even", "name": "again"}]
        print(train(data=ROWS, rewards=rewards, loss=my_loss, steps=1, **SMALL).state)
    """)
    (tmp_path / "there" / "script.py").write_text(script)
    assert run_python(["there/script.py"], tmp_path).split() == ["complete"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_python_c_trains_a_loaded_model_with_a_loss_and_a_reward_that_cannot_be_sent(tmp_path):
    code = SMALL + textwrap.dedent("""
        import threading
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from dora_rl import dry_run, train

        lock = threading.Lock()

        def locked(completions, **columns):
            with lock:
                return [float(len(text)) for text in completions]

        def my_loss(logprobs, advantages):
            return -advantages * logprobs

        del SMALL["model"]
        directory = dry_run("demo", steps=1).setup.model_directory
        model = AutoModelForCausalLM.from_pretrained(directory)
        tokenizer = AutoTokenizer.from_pretrained(directory)
        SMALL |= dict(model=model, tokenizer=tokenizer, rewards=locked, loss=my_loss)
        run = train(data=ROWS, steps=3, **SMALL)
        print(run.state, len(run.metrics), (run.directory / "initial_model" / "config.json").exists())
        print(type(AutoModelForCausalLM.from_pretrained(run.checkpoint)).__name__)
    """)
    assert run_python(["-c", code], tmp_path).split() == ["complete", "3", "True", "Qwen3ForCausalLM"]


def test_a_dry_run_says_what_a_run_would_need_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    plan = dry_run("demo", steps=3)
    assert plan.setup.recipe.steps == 3
    assert plan.disk_bytes > 0
    assert not list(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("_quick_preparation")
def test_mistakes_are_errors_with_a_hint_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="unknown key 'stepz'"):
        dry_run("demo", stepz=3)
    with pytest.raises(UserError, match="needs a column 'answer'"):
        dry_run(
            model="tiny",
            data=[{"prompt": "a"}],
            rewards=[lambda completions, answer: [0.0]],
            max_new_tokens=4,
        )
    with pytest.raises(UserError, match="data, row 1 is not a mapping of columns: 'b'"):
        dry_run(model="tiny", data=[{"prompt": "a"}, "b"], rewards=["exact_match"], max_new_tokens=4)
    with pytest.raises(UserError, match="data, row 0, column 'at' is not plain data: object is of no such"):
        dry_run(model="tiny", data=[{"prompt": "a", "at": object()}], rewards=["exact_match"])
    with pytest.raises(ConfigError, match="progress = 'loud' is not known"):
        dry_run("demo", progress="loud")
    with pytest.raises(UserError, match="two rewards are called 'exact_match'"):
        dry_run(model="tiny", data=ROWS, rewards=["exact_match"] * 2, max_new_tokens=4)
    with pytest.raises(UserError, match="no rows"):
        dry_run(model="tiny", data=[], rewards=["exact_match"], max_new_tokens=4)


def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(UserError, match="training needs torch, which is not installed") as error:
        dry_run("demo")
    assert "pip install" in error.value.hint


def test_a_run_of_a_directory_that_is_none_is_absent(tmp_path):
    run = Run(tmp_path / "nowhere")
    assert (run.state, run.metrics, run.checkpoint, list(run)) == ("absent", [], None, [])


def test_importing_the_package_is_quick_and_loads_no_torch():
    code = "import sys, time; t = time.perf_counter(); import dora_rl; took = time.perf_counter() - t\n"
    code += "print(took < 0.3, 'torch' in sys.modules, 'numpy' in sys.modules, dora_rl.train.__name__)\n"
    code += "print('torch' in sys.modules)"
    assert run_python(["-c", code], Path()).split() == ["True", "False", "False", "train", "False"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_callback_that_raises_ends_the_run_in_order_and_is_raised(tmp_path):
    code = SMALL + textwrap.dedent("""
        from dora_rl import train

        def third(row):
            if row["step"] == 3:
                raise ZeroDivisionError("enough")

        try:
            train(data=ROWS, rewards=["exact_match"], steps=500, on_step=third, **SMALL)
        except ZeroDivisionError as error:
            from dora_rl import Run
            run = Run("runs/run-1")
            print(error, run.state, run.checkpoint.name == f"step_{len(run.metrics):05}")
    """)
    assert run_python(["-c", code], tmp_path).split() == ["enough", "interrupted", "True"]
