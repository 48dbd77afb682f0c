"""Spares: what was imported beforehand is there, what does not fit is not used, and none is left behind."""

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from dora_rl.launch.protocol import Place, WorkerSpec
from dora_rl.launch.spares import SpareLaunch

from .echo_worker import Ask, Reply, Value
from .test_handles import HERE, all_end, words

ECHO = WorkerSpec(name="echo", module="echo_worker", search_path=(str(HERE), *sys.path))


def test_the_first_worker_that_fits_is_the_spare_and_the_next_a_new_process() -> None:
    with closing(SpareLaunch()) as launch:
        launch.prepare("echo_worker", ())
        spare = launch._spares[0].process.pid
        many_threads = launch.start(
            WorkerSpec(name="x", module="echo_worker", search_path=ECHO.search_path, place=Place(cpus=3)),
            Reply,
        )
        first, second = launch.start(ECHO, Reply), launch.start(ECHO, Reply)
        try:
            assert first.pid == spare
            assert len({many_threads.pid, first.pid, second.pid}) == 3
            first.send(Ask(variable="OMP_NUM_THREADS"))
            assert words(first, 1) == [Value(value="1")]
        finally:
            for handle in (many_threads, first, second):
                handle.end(within_s=0.0)


def test_a_worker_with_variables_of_its_own_is_no_spare() -> None:
    with closing(SpareLaunch()) as launch:
        launch.prepare("echo_worker", ())
        spec = WorkerSpec(
            name="x", module="echo_worker", search_path=ECHO.search_path, environment={"A": "b"}
        )
        handle = launch.start(spec, Reply)
        handle.end(within_s=0.0)
        assert len(launch._spares) == 1


def test_spares_that_nobody_needed_end_with_the_launch() -> None:
    launch = SpareLaunch()
    launch.prepare("echo_worker", ())
    pid = launch._spares[0].process.pid
    launch.close()
    assert all_end(pid)


def test_a_spare_that_died_is_a_worker_that_died() -> None:
    with closing(SpareLaunch()) as launch:
        launch.prepare("echo_worker", ())
        process = launch._spares[0].process
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        handle = launch.start(ECHO, Reply)
        words(handle, 1_000_000)
        assert handle.end(within_s=0.0) == "killed by SIGKILL"


def test_a_spare_ends_when_its_owner_is_gone(tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(
        "from dora_rl.launch.spares import SpareLaunch\n"
        "import os, time\n"
        "launch = SpareLaunch()\n"
        "launch.prepare('echo_worker', ())\n"
        "print(launch._spares[0].process.pid, flush=True)\n"
        "time.sleep(0.5)\n"
        "os._exit(1)\n"
    )
    pid = int(subprocess.run([sys.executable, script], stdout=subprocess.PIPE, check=False).stdout)
    began = time.monotonic()
    assert all_end(pid)
    assert time.monotonic() - began < 20.0
