"""Real processes that hang, raise and die: every request comes back exactly once."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dora_rl.core.errors import DoraError, UserError
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.launch.local import LocalHandle
from dora_rl.run.rewards import pool_worker
from dora_rl.run.rewards.pool import ScorerPool

from ..envs.scored import USER, asked, item, user
from .pooled import answers, pids, scoring


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    # Dead, if not yet buried by whoever inherited it.
    return state != "Z"


def test_every_request_is_answered_once_by_several_processes() -> None:
    with ScorerPool(scoring("length", "half", processes=2)) as pool:
        for n in range(200):
            pool.submit(asked(n, item("x" * n)))
        results = answers(pool, 200)
    assert [results[n].scores[0].values for n in range(200)] == [(float(n),) for n in range(200)]
    assert pool.num_restarts == 0


def test_quick_functions_get_requests_in_advance_and_slow_ones_do_not() -> None:
    """One request at a time and a poll for each would be all that a busy owner has time for."""
    with ScorerPool(scoring("length")) as pool:
        for n in range(64):
            pool.submit(asked(n, item("x")))
        pool.wait_ready()
        num_polls, num_answers = 0, 0
        while num_answers < 64:
            time.sleep(0.01)
            num_answers += len(pool.poll())
            num_polls += 1
        assert num_polls < 32
    with ScorerPool(scoring("slow")) as pool:
        for n in range(4):
            pool.submit(asked(n, item("x")))
        answers(pool, 4)
        (only,) = pool._workers
        assert only.capacity == 1


def test_a_process_starts_without_torch_and_runs_sync_code_as_a_script_does() -> None:
    with ScorerPool(scoring("has_torch", "own_loop", "on_alarm", "spoken")) as pool:
        pool.submit(asked(0, item("x")))
        (result,) = answers(pool, 1).values()
    assert not result.failures
    assert [scores.values for scores in result.scores] == [(0.0,), (2.0,), (1.0,), (1.0,)]


def test_what_a_function_prints_is_no_output(capfd: pytest.CaptureFixture[str]) -> None:
    with ScorerPool(scoring("spoken")) as pool:
        pool.submit(asked(0, item("x")))
        answers(pool, 1)
    assert capfd.readouterr().out == ""


def test_what_a_function_prints_is_in_the_log_when_its_process_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    log = tmp_path / "rewards.log"
    with ScorerPool(scoring("spoken"), log=log) as pool:
        pool.submit(asked(0, item("x")))
        answers(pool, 1)
    assert log.read_text() == "said on standard output\n"
    assert capfd.readouterr() == ("", "")


def test_a_hang_is_a_named_failure_and_the_rest_goes_on() -> None:
    with ScorerPool(scoring("half", "hangs_on_slow", time_limit_s=0.5)) as pool:
        pool.wait_ready()
        started = time.monotonic()
        for n, text in enumerate(["a", "slow", "b"]):
            pool.submit(asked(n, item(text, row=n)))
        results = answers(pool, 3)
        assert 0.5 <= time.monotonic() - started < 10
    (failure,) = results[1].failures
    assert (failure.function, failure.row, failure.reason) == ("hangs_on_slow", 1, "time limit")
    assert not results[0].failures
    assert not results[2].failures
    assert pool.num_restarts == 1


def test_a_function_that_kills_its_process_is_tried_once_more_and_then_counted() -> None:
    with ScorerPool(scoring("half", "dies_on_bad", processes=2)) as pool:
        for n, text in enumerate(["a", "bad", "b", "c"]):
            pool.submit(asked(n, item(text, row=n)))
        results = answers(pool, 4)
    (failure,) = results[1].failures
    assert (failure.function, failure.row, failure.reason) == ("dies_on_bad", 1, "process died")
    assert "SIGKILL" in failure.detail
    assert [n for n, result in results.items() if result.failures] == [1]
    assert pool.num_restarts == 2


def test_a_death_is_noticed_at_once_and_its_request_retried(tmp_path: Path) -> None:
    with ScorerPool(scoring("dies_once", time_limit_s=30.0, processes=2)) as pool:
        pool.wait_ready()
        started = time.monotonic()
        pool.submit(asked(0, item("x", marker=str(tmp_path / "died"))))
        (result,) = answers(pool, 1).values()
        assert time.monotonic() - started < 10, "the child that holds the pipe hid the death"
    assert not result.failures
    assert result.scores[0].values == (1.0,)


def test_killed_from_outside_while_idle_it_is_replaced() -> None:
    with ScorerPool(scoring("pid")) as pool:
        pool.wait_ready()
        (first,) = pids(pool)
        os.kill(first, signal.SIGKILL)
        assert select.select([pool], [], [], 10)[0], "the death makes the descriptor readable"
        pool.submit(asked(0, item("x")))
        (result,) = answers(pool, 1).values()
        assert result.metrics[0].value == pids(pool)[0] != first


def test_one_that_stops_while_idle_is_replaced_and_its_request_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_worker, "_BEGIN_LIMIT_S", 0.5)
    reasons: list[str] = []
    with ScorerPool(scoring("half"), replaced=reasons.append) as pool:
        pool.wait_ready()
        os.kill(pids(pool)[0], signal.SIGSTOP)
        pool.submit(asked(0, item("x")))
        (result,) = answers(pool, 1).values()
    assert not result.failures, "what it had not begun is nobody's fault"
    assert reasons == ["said nothing for 0.5 s"]


def test_asynchronous_requests_wait_together() -> None:
    with ScorerPool(scoring("naps", "half")) as pool:
        pool.wait_ready()
        started = time.monotonic()
        for n in range(40):
            pool.submit(asked(n, item("0.3")))
        results = answers(pool, 40)
        assert time.monotonic() - started < 5, "one after the other they take 12 s"
    assert all({s.function for s in result.scores} == {"naps", "half"} for result in results.values())


def test_an_asynchronous_call_that_takes_too_long_does_not_disturb_the_others() -> None:
    with ScorerPool(scoring("naps", time_limit_s=0.4)) as pool:
        for n, text in enumerate(["0", "60", "0.1"]):
            pool.submit(asked(n, item(text, row=n)))
        results = answers(pool, 3)
    assert [results[n].failures != () for n in range(3)] == [False, True, False]
    assert results[1].failures[0].label == "failed: reward naps, time limit"
    assert pool.num_restarts == 0


def test_the_descriptor_says_when_there_is_something_to_poll() -> None:
    with ScorerPool(scoring("hangs_on_slow", time_limit_s=0.3)) as pool:
        pool.wait_ready()
        assert pool.wait_s() is None
        assert not select.select([pool], [], [], 0)[0]
        pool.submit(asked(0, item("fine")))
        assert select.select([pool], [], [], 10)[0]
        assert answers(pool, 1)[0].scores
        pool.submit(asked(1, item("slow")))
        while not (results := pool.poll()):
            wait_s = pool.wait_s()
            select.select([pool], [], [], 10 if wait_s is None else wait_s)
        assert results[0].failures[0].reason == "time limit"


def test_a_request_larger_than_the_pipe_gets_through() -> None:
    text = "x" * 1_000_000
    with ScorerPool(scoring("length")) as pool:
        pool.submit(asked(0, item(text)))
        assert answers(pool, 1)[0].scores[0].values == (1e6,)


def test_closing_ends_the_processes_even_those_that_hang() -> None:
    with ScorerPool(scoring("hangs_on_slow", processes=2)) as pool:
        pool.wait_ready()
        pool.submit(asked(0, item("slow")))
        pool.poll(0.2)
        started = pids(pool)
    assert not any(is_alive(pid) for pid in started)


def test_whatever_happens_to_some_every_request_is_answered_once_and_the_others_are_scored() -> None:
    moods = ["fine"] * 24 + ["dies"] * 2 + ["hangs"] * 2 + ["raises"] * 4
    random.Random(0).shuffle(moods)
    with ScorerPool(scoring("moody", processes=3, time_limit_s=1.0)) as pool:
        for n, mood in enumerate(moods):
            pool.submit(asked(n, item(mood, row=n)))
        results = answers(pool, len(moods))
    reasons = {"dies": "process died", "hangs": "time limit", "raises": "raised"}
    for n, mood in enumerate(moods):
        found = [(failure.row, failure.reason) for failure in results[n].failures]
        assert found == ([] if mood == "fine" else [(n, reasons[mood])])
        assert bool(results[n].scores) == (mood == "fine")
    assert pool.num_restarts == 2 * 2 + 2


PARENT = """
import sys
from dora_rl.core.recipe.data import RewardConfig, ScoringConfig
from dora_rl.envs.data.rows import Row
from dora_rl.envs.scoring.reward_messages import Item, ScoreRequest
from dora_rl.run.rewards.pool import ScorerPool
pool = ScorerPool(ScoringConfig(rewards=(RewardConfig(function=sys.argv[1]),), processes=1))
pool.wait_ready()
item = Item(row=Row(row=0, prompt="?", columns={}), text="slow", token_ids=())
pool.submit(ScoreRequest(request=0, per="trajectory", items=(item,)))
pool.poll(0.2)
print(*(worker.handle.pid for worker in pool._workers), flush=True)
pool.poll(60)
"""


def test_when_the_run_is_killed_its_processes_end_even_those_that_hang() -> None:
    command = [sys.executable, "-c", PARENT, f"{USER}:hangs_on_slow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
        parent.wait()
    until = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < until, f"{pid} outlives its parent"
        time.sleep(0.02)


def test_what_cannot_be_imported_stops_the_run_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import math\nraise RuntimeError('no licence')\n")
    with (
        ScorerPool(scoring(RewardConfig(function=f"{path}:f"), processes=2)) as pool,
        pytest.raises(UserError, match=r"broken.py, line 2: RuntimeError: no licence"),
    ):
        pool.wait_ready()


def test_processes_that_die_while_they_import_stop_the_run(tmp_path: Path) -> None:
    path = tmp_path / "deadly.py"
    path.write_text("import os\nos._exit(5)\n")
    log = tmp_path / "rewards.log"
    with (
        ScorerPool(scoring(RewardConfig(function=f"{path}:f")), log=log) as pool,
        pytest.raises(DoraError, match="exited with 5") as ended,
    ):
        pool.wait_ready()
    assert str(log) in (ended.value.hint or "")


def test_processes_that_never_finish_importing_stop_the_run(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text("import time\ntime.sleep(60)\n")
    with (
        ScorerPool(scoring(RewardConfig(function=f"{path}:f"), start_limit_s=0.3)) as pool,
        pytest.raises(DoraError, match=r"said nothing for 0.3 s"),
    ):
        pool.wait_ready()


def test_missing_columns_are_known_before_the_first_score() -> None:
    with ScorerPool(scoring("strict")) as pool:
        pool.wait_ready(["answer"])
        with pytest.raises(UserError, match="needs a column 'answer'"):
            pool.wait_ready(["anser"])


def test_the_time_limit_holds_while_a_message_has_come_in_part() -> None:
    with ScorerPool(scoring("half_a_message", time_limit_s=0.5)) as pool:
        pool.wait_ready()
        started = time.monotonic()
        for n, text in enumerate(["a", "bad", "b"]):
            pool.submit(asked(n, item(text, row=n)))
        results = answers(pool, 3)
        assert time.monotonic() - started < 10
    (failure,) = results[1].failures
    assert (failure.function, failure.row, failure.reason) == ("half_a_message", 1, "time limit")
    assert [n for n, result in results.items() if result.failures] == [1]


def test_a_part_of_a_message_does_not_hide_that_a_process_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_worker, "_BEGIN_LIMIT_S", 0.5)
    reasons: list[str] = []
    with ScorerPool(scoring("half"), replaced=reasons.append) as pool:
        pool.wait_ready()
        (worker,) = pool._workers
        (pid,) = pids(pool)
        os.kill(pid, signal.SIGSTOP)
        # As if it had been stopped while it spoke.
        assert isinstance(worker.handle, LocalHandle)
        worker.handle._connection._frames.feed(b"\0\0\1\0half")
        pool.submit(asked(0, item("x")))
        assert not answers(pool, 1)[0].failures
    assert reasons == ["said nothing for 0.5 s"]


@pytest.mark.parametrize(("function", "said"), [("babbles", "no message"), ("doubles", "spoke of request 1")])
def test_nonsense_on_the_socket_is_a_death_of_its_process(function: str, said: str) -> None:
    reasons: list[str] = []
    with ScorerPool(scoring(function), replaced=reasons.append) as pool:
        for n, text in enumerate(["a", "bad", "b"]):
            pool.submit(asked(n, item(text, row=n)))
        results = answers(pool, 3)
        until = time.monotonic() + 10.0
        while not reasons and time.monotonic() < until:
            pool.poll(0.1)
    assert reasons
    assert said in reasons[0]
    assert not results[0].failures
    assert not results[2].failures
    if function == "babbles":
        (failure,) = results[1].failures
        assert failure.reason == "process died"
        assert failure.summary.startswith("the process that ran it sent what is no message")


def test_a_key_is_looked_up_by_the_process_that_scores_and_taken_out_of_what_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-proj-4f9Tq2ZbXw81LmVe")
    reward = user("with_key", options={"api_key": "env:JUDGE_KEY"})
    with ScorerPool(scoring(reward)) as pool:
        for n, text in enumerate(["good", "bad"]):
            pool.submit(asked(n, item(text)))
        results = answers(pool, 2)
    assert results[0].scores[0].values == (24.0,)
    (failure,) = results[1].failures
    assert failure.summary == "ValueError: the key env:JUDGE_KEY is not known"
    assert "sk-proj" not in failure.detail
    monkeypatch.delenv("JUDGE_KEY")
    with ScorerPool(scoring(reward)) as pool, pytest.raises(UserError) as caught:
        pool.wait_ready()
    assert "the environment variable JUDGE_KEY, which is not set" in caught.value.message
