"""The prompts of a live run: control's queue is kept filled from a source.

A built-in source runs here. One of the user's own runs in a process with a time limit, so that nothing it
does can keep the run from being looked at. Both are told what is durable and nothing else: a source that
starts again, with the run or after its process died, is told all of it again and is where it was.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from dora_rl.control.plane import ControlPlane
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input, PromptsOffered
from dora_rl.envs.prompt_offers import GroupScores, PromptOffers
from dora_rl.envs.prompt_source import built_in_source
from dora_rl.launch.protocol import Handle, Launch, WorkerSpec
from dora_rl.run import messages as say
from dora_rl.run.prompt_table import PromptLengths, PromptTable
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.worker_deaths import WorkerDeaths, end_if_final, how_it_ended

_NAME = "the source of prompts"
_ASK_AGAIN_S = 0.2
"""Seconds after which a source that had no rows is asked again."""


class PromptFeed:
    """Offers prompts to control when few are queued."""

    def __init__(self, setup: RunSetup, prompts: PromptTable) -> None:
        order, lengths = setup.data.order, PromptLengths(prompts)
        self._setup = setup
        self._is_exhausted = False
        self._offers = PromptOffers(lengths)
        self._scores = GroupScores(group_size=setup.recipe.batch.group_size)
        self._built_in = (
            built_in_source(order, len(lengths), seed=setup.recipe.seed) if order.is_built_in else None
        )
        self._told: list[say.SourceTold] = []
        self._worker: SourceProcess | None = None

    def start(self, layout: LiveLayout, deaths: WorkerDeaths, launch: Launch) -> None:
        """Start the process of a source of the user's own; it is told what happened before."""
        if self._built_in is None:
            self._worker = SourceProcess(self._setup, layout, deaths, launch, self._told)

    @property
    def handles(self) -> list[Handle]:
        """Handles of processes whose messages the loop waits for."""
        return [self._worker.handle] if self._worker is not None and self._worker.is_started else []

    def watch(self, told: Input, decisions: Sequence[Decision]) -> None:
        """Tell the source of a durable event, whether it happened now or before a restart."""
        if isinstance(told, PromptsOffered):
            self._offers.recall(told)
            self._is_exhausted |= told.is_last
            self._tell(say.RowsOffered(rows=tuple(prompt.row for prompt in told.prompts)))
        if self._built_in is None:
            for score in self._scores.watch(told, decisions):
                self._tell(say.GroupScored(score=score))

    def _tell(self, message: say.SourceTold) -> None:
        if self._built_in is not None:
            assert isinstance(message, say.RowsOffered), "a built-in source looks at no rewards"
            self._built_in.offered(message.rows)
            return
        self._told.append(message)
        if self._worker is not None:
            self._worker.handle.send(message)

    def offers(self, plane: ControlPlane, at: float) -> list[PromptsOffered]:
        """Rows to offer to control now; a source in a process answers at a later turn."""
        if plane.is_done:
            return []
        order, batch, num_queued = self._setup.data.order, self._setup.recipe.batch, len(plane.prompts)
        low_water = order.low_water(plane.prompts.most_at_once, batch.groups)
        wanted = 2 * low_water - num_queued if num_queued < low_water and not self._is_exhausted else 0
        if self._worker is not None:
            return [self._offers.offer(rows, at) for rows in self._worker.answers(wanted)]
        if not wanted:
            return []
        assert self._built_in is not None, "a source of the user's own is started before it is asked"
        return [self._offers.offer(self._built_in.choose(wanted), at)]

    def close(self) -> None:
        if self._worker is not None:
            self._worker.handle.end(within_s=0.0)


class SourceProcess:
    """The process of a source of the user's own: asked, heard, and started again when it is gone."""

    def __init__(
        self,
        setup: RunSetup,
        layout: LiveLayout,
        deaths: WorkerDeaths,
        launch: Launch,
        told: Sequence[say.SourceTold],
    ) -> None:
        """`told` grows as the run goes on; a process that starts is told all of it."""
        self._setup = setup
        self._layout = layout
        self._deaths = deaths
        self._launch = launch
        self._told = told
        self.handle = self._started()

    @property
    def _log(self) -> Path:
        return self._layout.logs / "prompt_source.log"

    @property
    def is_started(self) -> bool:
        """Whether the process is there; else it waits to be started again."""
        return self._start_at is None

    def _started(self) -> Handle:
        self._start_at: float | None = None
        self._is_asked = self._is_ready = False
        self._limit_s = self._setup.recipe.patience.start_s
        self._since, self._ask_from = time.monotonic(), 0.0
        handle = self._launch.start(
            WorkerSpec(name=_NAME, module="dora_rl.run.workers.source_worker", log=str(self._log)),
            say.SourceWord,
        )
        handle.send(
            say.OpenSource(
                order=self._setup.data.order,
                prompts=str(self._layout.prompts),
                seed=self._setup.recipe.seed,
                told=tuple(self._told),
            )
        )
        return handle

    def answers(self, wanted: int) -> list[tuple[int, ...] | None]:
        """Choices that arrived, None where no more will come; asks for `wanted` rows if it is time."""
        answers: list[tuple[int, ...] | None] = []
        for word in self.handle.receive():
            answers += self._hear(word)
        self._restart_if_gone()
        now, may_ask = time.monotonic(), self._is_ready and not (self._is_asked or answers)
        if wanted and may_ask and now >= self._ask_from:
            self._is_asked, self._since = True, now
            self.handle.send(say.ChooseRows(count=wanted))
        return answers

    def _hear(self, word: say.SourceWord) -> list[tuple[int, ...] | None]:
        match word:
            case say.SourceReady():
                self._is_ready, self._limit_s = True, self._setup.data.order.time_limit_s
            case say.RowsChosen():
                self._is_asked = False
                if word.rows is None or word.rows:
                    return [word.rows]
                self._ask_from = time.monotonic() + _ASK_AGAIN_S
            case say.Broken():
                end_if_final(word)
        return []

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
        pause_s = self._deaths.count(_NAME, reason, self._log)
        self._is_ready = False
        self._start_at = time.monotonic() + pause_s
        if not pause_s:
            self.handle = self._started()
