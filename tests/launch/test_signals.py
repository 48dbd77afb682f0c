"""Signals to end: what each is counted as, and that nothing is left behind."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dora_rl.launch.temporary import temporary_directory
from dora_rl.launch.waiting import Interrupts, terminations_interrupt, undisturbed


@pytest.fixture(autouse=True)
def hangups() -> Iterator[None]:
    """As in a process that a terminal started, whatever this one was started with."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_gone_asks_once_however_often_it_says_so() -> None:
    interrupts = Interrupts()
    with closing(interrupts), interrupts.heeded():
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
        assert interrupts.count == 1
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.count == 2
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """As nohup has it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupts = Interrupts()
    with closing(interrupts), terminations_interrupt(), interrupts.heeded(), undisturbed():
        signal.raise_signal(signal.SIGHUP)
        assert interrupts.count == 0
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_before_a_run_heeds_signals_they_interrupt(number: signal.Signals) -> None:
    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            if number == signal.SIGHUP:
                signal.raise_signal(number)  # While what is open is closed.

    with pytest.raises(KeyboardInterrupt), terminations_interrupt():
        work()
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_leaves_no_temporary_directory(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    removing = shutil.rmtree

    def impatient(*arguments: Any, **choices: Any) -> None:
        os.kill(os.getpid(), number)
        removing(*arguments, **choices)

    monkeypatch.setattr(shutil, "rmtree", impatient)
    with pytest.raises(KeyboardInterrupt), terminations_interrupt(), temporary_directory("dora-"):
        os.kill(os.getpid(), number)
    assert not list(tmp_path.iterdir())
