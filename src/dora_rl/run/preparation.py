"""What a new run is made of: rows as token ids, and the model after a warm start.

Made by a process of its own, because whoever tokenizes imports torch. It says what it is at. However long the
whole takes, it may go on as long as each piece ends within its limit; one that does not, or a process that
dies, is an error that names the piece.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dora_rl.core.errors import DoraError
from dora_rl.launch.protocol import Handle, Launch, WorkerSpec
from dora_rl.launch.waiting import wait_for
from dora_rl.run import messages as say
from dora_rl.run.layout import LiveLayout
from dora_rl.run.setup import RunSetup
from dora_rl.run.worker_deaths import end_if_final, how_it_ended

Tell = Callable[[str], None]
"""Hears what somebody who waits wants to know."""

_TELL_EVERY_S = 10.0
_LOOK_EVERY_S = 0.2


def make_prompts(setup: RunSetup, layout: LiveLayout, tell: Tell, launch: Launch) -> None:
    """Leave prompts, tokenizer and, after a warm start, the model in `layout`."""
    log = layout.root / "prompts.log"
    worker = launch.start(
        WorkerSpec(name="the preparation", module="dora_rl.run.workers.prompts", log=str(log)),
        say.PromptsWord,
    )
    worker.send(say.Begin(setup=setup, store=str(layout.root)))
    try:
        _PreparationWait(worker, setup, log, tell).wait()
    finally:
        worker.end(within_s=0.0)


class _PreparationWait:
    """From the start of the process to its last word."""

    def __init__(self, worker: Handle, setup: RunSetup, log: Path, tell: Tell) -> None:
        self._worker = worker
        self._silence_s = setup.recipe.control.silence_s
        self._log = log
        self._tell = tell
        # Before its first word it imports torch.
        self._at = say.Preparing(what="getting ready to read the rows", limit_s=setup.recipe.patience.start_s)
        self._is_ready = False
        self._heard_at = self._since = self._told_at = time.monotonic()

    def wait(self) -> None:
        while True:
            wait_for([self._worker], [], _LOOK_EVERY_S)
            for word in self._worker.receive():
                if isinstance(word, say.PromptsWritten):
                    return
                self._hear(word)
            if not self._worker.is_alive:
                self._fail(f"the process {how_it_ended(self._worker.end(within_s=1.0), None, self._log)}")
            self._check_time()

    def _hear(self, word: say.PromptsWord) -> None:
        self._heard_at = time.monotonic()
        self._is_ready = True
        if isinstance(word, say.Broken):
            end_if_final(word)
            raise DoraError(word.message, hint=word.hint)
        if isinstance(word, say.Preparing):
            if word.what != self._at.what:
                self._told_at = self._heard_at
            self._at, self._since = word, self._heard_at

    def _check_time(self) -> None:
        now, at = time.monotonic(), self._at
        if now - self._since > at.limit_s:
            self._fail(f"nothing came of it for {at.limit_s:g} s")
        if self._is_ready and now - self._heard_at > self._silence_s:
            self._fail(f"the process gave no sign of life for control.silence_s = {self._silence_s:g} s")
        if now - self._told_at > _TELL_EVERY_S:
            self._told_at = now
            self._tell(str(at))

    def _fail(self, reason: str) -> NoReturn:
        # What is in the run's own place goes with it; this has to be read.
        with tempfile.NamedTemporaryFile(prefix="dora-prompts-", suffix=".log", delete=False) as kept:
            shutil.copyfile(self._log, kept.name)
        raise DoraError(f"{self._at} failed: {reason}", hint=f"what the process said is in {kept.name}")
