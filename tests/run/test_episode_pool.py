"""Real processes full of episodes that hang, exit and keep their loop: every episode comes back once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dora_rl.core.errors import UserError
from dora_rl.envs.episodes.episode_messages import EpisodeBroken, EpisodeDone, TurnAsked
from dora_rl.run.episodes.pool import EpisodeLost
from dora_rl.run.worker_deaths import WorkerDied

from .episode_run import answered, opening
from .test_pool import is_alive


@pytest.mark.parametrize("function", ["three_turns", "blocking"])
def test_episodes_are_spread_over_processes_that_never_load_torch(tmp_path: Path, function: str) -> None:
    with answered(tmp_path, opening(tmp_path, function), processes=2) as run:
        for member in range(40):
            run.begin(member)
        assert sorted(len(process.episodes) for process in run.pool._processes) == [20, 20]
        run.all_end(40)
        assert {end.reward for end in run.ends.values() if isinstance(end, EpisodeDone)} == {1.0}
        assert not run.deaths.total
        pids = run.pids
    assert not any(map(is_alive, pids))


def test_episodes_of_a_process_that_is_killed_are_begun_again_and_lose_no_turn(tmp_path: Path) -> None:
    with answered(tmp_path, opening(tmp_path, "blocking", options={"pause_s": 0.05}), processes=2) as run:
        for member in range(20):
            run.begin(member)
        run.until(lambda: len(run.taken) > 10, "turns")
        os.kill(run.pids[0], signal.SIGKILL)
        run.all_end(20)
        assert {end.reward for end in run.ends.values() if isinstance(end, EpisodeDone)} == {1.0}
        lost = [word for word in run.heard if isinstance(word, EpisodeLost)]
        assert len(lost) == 10
        assert "killed by SIGKILL" in lost[0].reason
        assert run.num_drawn == 60
        assert run.deaths.total == {"episode worker 0": 1}


def test_episodes_have_a_process_of_their_own_with_a_limit_of_its_memory(tmp_path: Path) -> None:
    opened = opening(tmp_path, "as_told", memory_bytes=4 << 30)
    with answered(tmp_path, opened, processes=2, per_process=1) as run:
        run.is_answering = False
        for member, what in enumerate(("fill the memory", "", "")):
            run.begin(member, what)
        run.until(lambda: len(run.heard) == 2, "first turns")
        assert [len(process.episodes) for process in run.pool._processes] == [1, 1]
        assert run.pool.num_open == 3  # One waits for a process.
        (neighbour,) = (process for process in run.pool._processes if 0 not in process.episodes)
        os.kill(neighbour.handle.pid, signal.SIGKILL)
        run.until(lambda: len(run.heard) == 3, "news of a death")
        assert isinstance(run.heard[2], EpisodeLost)
        run.is_answering = True
        run.hear(next(word for word in run.heard if word.episode == 0))
        run.all_end(3)
        assert [type(run.ends[member]) for member in range(3)] == [EpisodeBroken, EpisodeDone, EpisodeDone]
        assert "MemoryError" in run.ends[0].detail
        # Nobody but the one whose process was killed was begun again.
        assert sum(isinstance(word, EpisodeLost) for word in run.heard) == 1


def test_code_that_ends_its_process_twice_is_to_blame_and_its_neighbours_are_not(tmp_path: Path) -> None:
    with answered(tmp_path, opening(tmp_path, "as_told")) as run:
        run.is_answering = False
        run.begin(0, "exit")
        for member in range(1, 6):
            run.begin(member)
        run.until(lambda: len(run.heard) == 6, "first turns")
        asked = [word for word in run.heard if isinstance(word, TurnAsked)]
        run.is_answering = True
        run.heard.clear()
        for word in asked[:1]:
            run.hear(word)
        run.all_end(6)
        broken = run.ends.pop(0)
        assert isinstance(broken, EpisodeBroken)
        assert broken.reason == "process died"
        assert "exited with 3" in broken.detail
        assert {end.reward for end in run.ends.values() if isinstance(end, EpisodeDone)} == {1.0}
        assert len(run.ends) == 5


def test_code_that_keeps_the_loop_is_a_failure_and_the_others_go_on_elsewhere(tmp_path: Path) -> None:
    opened = opening(tmp_path, "as_told", call_limit_s=1.5)
    with answered(tmp_path, opened) as run:
        run.begin(0, "keep the loop")
        for member in range(1, 4):
            run.begin(member)
        run.all_end(4)
        broken = run.ends.pop(0)
        assert isinstance(broken, EpisodeBroken)
        assert broken.reason == "call limit"
        assert "time.sleep(60)" in broken.detail
        assert all(isinstance(end, EpisodeDone) for end in run.ends.values())
        assert run.deaths.total == {"episode worker 0": 1}
        assert "awaited nothing" in (tmp_path / "book").read_text()


def test_a_stopped_process_is_silent_and_replaced(tmp_path: Path) -> None:
    with answered(tmp_path, opening(tmp_path, "three_turns"), silence_s=5.0) as run:
        run.is_answering = False
        for member in range(3):
            run.begin(member)
        run.until(lambda: len(run.heard) == 3, "first turns")
        os.kill(run.pids[0], signal.SIGSTOP)
        run.is_answering = True
        run.all_end(3)
        assert "was silent for 5 s" in (tmp_path / "book").read_text()


@pytest.mark.parametrize("function", ["as_told", "hang_in_a_thread"])
def test_a_thread_that_hangs_has_its_process_replaced_once_the_others_are_done(
    tmp_path: Path, function: str
) -> None:
    opened = opening(tmp_path, function, call_limit_s=0.5)
    with answered(tmp_path, opened) as run:
        run.is_answering = False
        run.begin(0, "hang in a thread" if function == "as_told" else "hang")
        run.begin(1)
        run.until(lambda: len(run.heard) == 2, "first turns")
        for word in list(run.heard):
            if word.episode == 0:
                run.is_answering = True
                run.hear(word)
                run.is_answering = False
        (pid,) = run.pids
        run.until(lambda: len(run.pids) == 2, "second process")
        broken = run.ends[0]
        assert isinstance(broken, EpisodeBroken)
        assert "time.sleep" in broken.detail
        assert is_alive(pid)
        run.is_answering = True
        for word in list(run.heard):
            if isinstance(word, TurnAsked) and word.episode == 1:
                run.hear(word)
        run.all_end(2)
        run.until(lambda: len(run.pids) == 1, "end of the first process")
        assert not is_alive(pid)
        assert not any(isinstance(word, EpisodeLost) for word in run.heard)
        run.begin(2)
        run.all_end(3)
        assert "hangs in it" in (tmp_path / "book").read_text()


def test_an_episode_that_is_ended_is_heard_of_no_more_and_cleans_up(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with answered(tmp_path, opening(tmp_path, "as_told")) as run:
        run.begin(0, "clean up", mark=str(mark))
        run.until(lambda: len(run.heard) == 2, "second turn")
        run.pool.end(0)
        run.pool.end(0)
        assert run.pool.num_open == 0
        run.until(mark.exists, "mark")
        run.begin(1, "clean up", mark=str(tmp_path / "other"))
        run.is_answering = False
        run.until(lambda: len(run.heard) >= 3, "first turn of the next")
    assert not run.ends


def test_episodes_that_are_left_at_the_end_clean_up(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with answered(tmp_path, opening(tmp_path, "as_told")) as run:
        run.begin(0, "clean up", mark=str(mark))
        run.until(lambda: len(run.heard) == 2, "second turn")
    assert mark.exists()


@pytest.mark.parametrize(("function", "said"), [("nothing", "has no 'nothing'"), ("Broken", "no such game")])
def test_what_cannot_be_imported_ends_the_run_with_a_sentence(
    tmp_path: Path, function: str, said: str
) -> None:
    with answered(tmp_path, opening(tmp_path, function)) as run, pytest.raises(UserError, match=said):
        run.until(lambda: False, "error")


def test_a_process_that_cannot_start_ends_the_run(tmp_path: Path) -> None:
    opened = opening(tmp_path, "Exits")
    with answered(tmp_path, opened) as run, pytest.raises(WorkerDied, match="episode worker 0 died 3 times"):
        run.until(lambda: False, "error")


def test_an_environment_that_ends_every_process_does_not_end_the_run(tmp_path: Path) -> None:
    with answered(tmp_path, opening(tmp_path, "as_told")) as run:
        for member in range(2):
            run.begin(member, "exit")
            run.all_end(member + 1)
        assert {end.reason for end in run.ends.values() if isinstance(end, EpisodeBroken)} == {"process died"}
        assert run.deaths.total == {"episode worker 0": 4}, "one more than would end a run"


def test_a_process_ends_with_its_owner(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from tests.run.episode_run import answered, opening\n"
        "where = Path(sys.argv[1])\n"
        "with answered(where, opening(where, 'blocking')) as run:\n"
        "    run.begin(0)\n"
        "    run.all_end(1)\n"
        "    print(*run.pids, flush=True)\n"
        "    time.sleep(60)\n"
    )
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), root], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.kill()
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(pid)
