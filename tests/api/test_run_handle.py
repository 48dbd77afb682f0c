"""A run as Python sees it: stopped from callbacks, from a loop over it, by a signal at any moment."""

import os
import signal
import threading
from contextlib import closing

import pytest

from dora_rl import Interrupted, Run
from dora_rl.api.entry_points import _interrupts_told
from dora_rl.api.work import Callbacks, CallersWatcher
from dora_rl.core.inputs import Tick
from dora_rl.launch.waiting import Interrupts, terminations_interrupt
from dora_rl.observe.live.metrics_tail import MetricsTail
from dora_rl.run.run_layout import LiveLayout


class FakeWork:
    """A run that can be interrupted."""

    def __init__(self, run):
        self.run, self.interrupts = run, Interrupts()


def test_a_callback_that_stops_the_run_at_every_step_stops_it_in_order(tmp_path):
    run, interrupts, counts = Run(tmp_path), Interrupts(), []

    def work():
        for _ in range(2):
            run.stop()
            counts.append(interrupts.count)

    run.begin(threading.Thread(target=work), interrupts)
    run.wait()
    assert counts == [1, 1]
    run.stop()
    assert interrupts.count == 2
    interrupts.close()


def test_ctrl_c_while_iterating_stops_the_run_in_order(tmp_path):
    run, interrupts = Run(tmp_path), Interrupts()

    def work():
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        while not interrupts.count:
            pass

    run.begin(threading.Thread(target=work), interrupts)
    assert list(run) == []
    assert interrupts.count == 1
    interrupts.close()


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_interrupt_that_the_run_did_not_heed_says_how_to_go_on_if_there_is_a_run(tmp_path, has_begun):
    def work():
        if has_begun:
            LiveLayout(root=tmp_path).setup.touch()
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt) as caught, _interrupts_told(FakeWork(Run(tmp_path))):
        work()
    assert isinstance(caught.value, Interrupted) == has_begun
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_callers_own_is_left_alone():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with terminations_interrupt():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_callback_that_raises_after_an_interrupt_leaves_time_for_the_checkpoint(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "step_time": 0.5}\n')
    with closing(Interrupts()) as interrupts:
        interrupts.ask()
        callers = CallersWatcher(
            Run(tmp_path), MetricsTail(tmp_path / "metrics.jsonl"), Callbacks(lambda row: 1 / 0), interrupts
        )
        callers.watch(Tick(at=1.0), [])
        assert interrupts.count == 1
        with pytest.raises(ZeroDivisionError):
            callers.finish()


def test_rows_that_a_resumed_run_writes_again_are_told_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    tail = MetricsTail(path)
    assert [row["step"] for row in tail.read()] == [1, 2]
    path.write_text('{"step": 1}\n')
    tail.notice_cut()
    path.write_text('{"step": 1}\n{"step": 2}\n')
    assert [row["step"] for row in tail.read()] == [2]
