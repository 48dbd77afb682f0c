"""Ctrl-C, as a terminal sends it to `dora train`, and runs that cannot be resumed."""

import time
from pathlib import Path

import pytest

from .learning import STEPS, begin, check_run, finished, num_published, resume


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_writes_a_checkpoint_and_a_second_one_leaves_at_once_still_losing_nothing(
    tmp_path: Path,
) -> None:
    root = tmp_path / "run"
    # Of the checkpoints, only the interrupt's falls on such a step.
    command = begin(root, "checkpoints.every=50", is_json=False)
    command.wait_for_step(2)
    command.interrupt()
    code, out, said = command.ended(within_s=60)
    num_steps = num_published(root)
    assert code == 130
    assert 2 <= num_steps < STEPS
    assert f"interrupted: {num_steps} steps" in out
    assert f"model: {root}/checkpoints/step_{num_steps:05}" in out
    assert f"go on with: dora train --resume {root}" in out
    assert "Traceback" not in said
    assert (root / f"checkpoints/step_{num_steps:05}/trainer/checkpoint.json").exists()

    command = resume(root, is_json=False)
    command.wait_for_step(2)
    code, _, said = resume(root).ended(within_s=60)
    assert code == 2
    assert said.splitlines() == [
        f"error: the run in {root} is going on in another process",
        "hint: wait for it, or end it",
    ]
    command.interrupt()
    time.sleep(0.05)
    command.interrupt()
    began = time.monotonic()
    code, out, said = command.ended(within_s=60)
    assert time.monotonic() - began < 10, "at once, and on a busy machine the report takes some seconds"
    assert code == 130
    assert f"go on with: dora train --resume {root}" in out
    assert f"goes on after step {num_steps} of {STEPS}" in said
    assert "Traceback" not in said

    assert finished(resume(root), within_s=150)["is_complete"]
    check_run(root)
    code, _, said = resume(root).ended(within_s=60)
    assert code == 0
    assert "the run is finished: nothing is left to train" in said


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_ctrl_c_writes_a_checkpoint_though_a_step_has_begun_with_some_of_its_groups(tmp_path: Path) -> None:
    root = tmp_path / "run"
    command = begin(root, "checkpoints.every=50", "control.stream=true", is_json=False)
    command.wait_for_step(3)
    command.interrupt()
    code, out, said = command.ended(within_s=60)
    assert code == 130
    assert "Traceback" not in said
    assert f"model: {root}/checkpoints/step_{num_published(root):05}" in out
    assert finished(resume(root), within_s=150)["is_complete"]
    check_run(root)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ctrl_c_before_the_run_began_leaves_nothing_behind(tmp_path: Path) -> None:
    command = begin(tmp_path / "run", is_json=False)
    command.wait_until(lambda: bool(command.workers("prepare.worker")))
    time.sleep(0.5)
    command.interrupt()
    code, _, said = command.ended(within_s=30)
    assert (code, said) == (130, "interrupted before the run began\n")
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.glob(".run*"))


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_rewards_are_imported_ends_the_run_and_says_how_to_go_on(
    tmp_path: Path, times: int
) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import sys, time\n"
        "if 'dora_rl.run.workers.reward_worker' in sys.orig_argv:\n"
        "    time.sleep(100)\n"
        "def judge(completions, **columns):\n"
        "    return [1.0 for _ in completions]\n"
    )
    root = tmp_path / "run"
    command = begin(root, f"rewards=[{{function: '{slow}:judge'}}]", is_json=False)
    command.wait_until(lambda: bool(command.workers("workers.reward_worker")))
    time.sleep(1.0)
    for _ in range(times):
        command.interrupt()
        time.sleep(0.05)
    began = time.monotonic()
    code, out, said = command.ended(within_s=60)
    assert time.monotonic() - began < (30 if times == 1 else 10)
    assert code == 130
    assert f"go on with: dora train --resume {root}" in out
    assert "Traceback" not in said
    slow.write_text(slow.read_text().replace("100", "0"))
    command = resume(root, is_json=False)
    command.wait_for_step(1)
    command.interrupt()
    assert command.ended(within_s=60)[0] == 130
    assert num_published(root) >= 1
