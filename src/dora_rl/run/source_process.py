"""The process of the user's own source of prompts, or of a stream: asked, heard, started again."""

import time
from collections.abc import Callable

from dora_rl.launch.protocol import Handle, Launch, WorkerSpec
from dora_rl.run import source_messages as say
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.worker_deaths import WorkerDeaths, end_if_final, how_it_ended

NAME = "the source of prompts"
_ASK_AGAIN_S = 0.2
"""Seconds after which a source that had no rows is asked again."""


class SourceProcess:
    """A process that chooses rows or reads them, and that cannot keep the run from being looked at."""

    def __init__(
        self,
        setup: RunSetup,
        layout: LiveLayout,
        deaths: WorkerDeaths,
        launch: Launch,
        opening: Callable[[], say.OpenSource | say.OpenStream],
    ) -> None:
        """`opening` is what a process that starts is told first: where it goes on."""
        self._patience_s = setup.recipe.patience.start_s
        self._time_limit_s = setup.data.order.time_limit_s
        self._log = layout.logs / "prompt_source.log"
        self._deaths = deaths
        self._launch = launch
        self._opening = opening
        self.handle = self._started()

    @property
    def is_started(self) -> bool:
        """Whether the process is there; else it waits to be started again."""
        return self._start_at is None

    def _started(self) -> Handle:
        self._start_at: float | None = None
        self._is_asked = self._is_ready = False
        self._limit_s = self._patience_s
        self._since, self._ask_from = time.monotonic(), 0.0
        handle = self._launch.start(
            WorkerSpec(name=NAME, module="dora_rl.run.workers.source_worker", log=str(self._log)),
            say.SourceWord,
        )
        handle.send(self._opening())
        return handle

    def words(self, wanted: int, hear: Callable[[say.SourceWord], None]) -> None:
        """Let `hear` have every word that arrived, then ask for `wanted` rows if it is time."""
        has_answered = False
        for word in self.handle.receive():
            has_answered |= self._note(word)
            hear(word)
        self._restart_if_gone()
        now, may_ask = time.monotonic(), self._is_ready and not (self._is_asked or has_answered)
        if wanted and may_ask and now >= self._ask_from:
            self._is_asked, self._since = True, now
            self.handle.send(say.ChooseRows(count=wanted))

    def _note(self, word: say.SourceWord) -> bool:
        """Take note of a word; returns whether it ends an answer."""
        self._since = time.monotonic()
        match word:
            case say.SourceReady():
                self._is_ready, self._limit_s = True, self._time_limit_s
            case say.RowsChosen(rows=()) | say.RowsRead(is_dry=True):
                self._is_asked, self._ask_from = False, self._since + _ASK_AGAIN_S
                return True
            case say.RowsChosen() | say.RowsRead():
                self._is_asked = False
                return True
            case say.Broken():
                end_if_final(word)
        return False

    def _restart_if_gone(self) -> None:
        if self._start_at is not None:
            if time.monotonic() >= self._start_at:
                self.handle = self._started()
            return
        is_waited_for = self._is_asked or not self._is_ready
        if not self.handle.is_alive:
            reason = how_it_ended(self.handle.end(within_s=1.0), None, self._log)
        elif is_waited_for and time.monotonic() - self._since > self._limit_s:
            self.handle.end(within_s=0.0)
            key = "data.order.time_limit_s" if self._is_ready else "patience.start_s"
            reason = f"did not answer within {key} = {self._limit_s:g} s"
        else:
            return
        pause_s = self._deaths.count(NAME, reason, self._log)
        self._is_ready = False
        self._start_at = time.monotonic() + pause_s
        if not pause_s:
            self.handle = self._started()
