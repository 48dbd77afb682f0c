"""A benchmark that is interrupted says so, instead of measuring half a run."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dora_rl.bench.whole_run import run_whole
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input, Published
from dora_rl.prepare.preparation import Preparation
from dora_rl.run.run_setup import RunSetup


@pytest.mark.slow
def test_an_interrupt_that_ends_a_run_in_order_is_raised(make_setup: Callable[..., RunSetup]) -> None:
    def interrupt(event: Input, decisions: list[Decision]) -> None:
        if isinstance(event, Published):
            os.kill(os.getpid(), signal.SIGINT)

    setup = make_setup()
    with Preparation(setup.recipe, setup.run_directory) as preparation:
        preparation.plan()
        with pytest.raises(KeyboardInterrupt):
            run_whole(setup, preparation.finish(), [interrupt])
    assert not (Path(setup.run_directory) / "finished.json").exists()
