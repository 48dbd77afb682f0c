"""The prompts of a live run: control's queue is kept filled from a source.

A built-in source runs here. One of the user's own runs in a process with a time limit, so that nothing it
does can keep the run from being looked at. Both are told what is durable and nothing else: a source that
starts again, with the run or after its process died, is told all of it again and is where it was.
"""

from collections.abc import Sequence
from typing import Protocol

from dora_rl.control.plane import ControlPlane
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input, PromptsOffered
from dora_rl.core.named import Objects
from dora_rl.core.recipe.data import DataConfig
from dora_rl.envs.prompt_offers import GroupScores, PromptOffers
from dora_rl.envs.prompt_source import PromptSource, WeightedParts, built_in_source
from dora_rl.launch.protocol import Handle, Launch
from dora_rl.run import source_messages as say
from dora_rl.run.prompt_table import PromptLengths, PromptTable, RunPrompts
from dora_rl.run.received import Received
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.source_process import SourceProcess
from dora_rl.run.worker_deaths import WorkerDeaths


class Feed(Protocol):
    """Where the prompts of a live run come from: rows of a table in some order, or a stream."""

    def start(self, layout: LiveLayout, deaths: WorkerDeaths, launch: Launch, objects: Objects) -> None:
        """Start the process that code of the user's runs in, if there is some; it goes on where it was."""
        ...

    @property
    def num_overlong(self) -> int:
        """Rows left out since the run began because their prompts are too long."""
        ...

    @property
    def handles(self) -> list[Handle]: ...

    def watch(self, told: Input, decisions: Sequence[Decision]) -> None:
        """Take note of a durable event, whether it happened now or before a restart."""
        ...

    def read(self, plane: ControlPlane, at: float) -> Received:
        """Prompts to offer to control now."""
        ...

    def close(self) -> None: ...


class PromptFeed:
    """Offers prompts to control when few are queued."""

    def __init__(self, setup: RunSetup, prompts: RunPrompts) -> None:
        order, lengths = setup.data.order, PromptLengths(prompts.table)
        self._setup = setup
        self._is_exhausted = False
        self._offers = PromptOffers(lengths)
        self._scores = GroupScores(group_size=setup.recipe.batch.group_size)
        self._built_in = (
            table_source(setup.data, prompts.table, seed=setup.recipe.seed) if order.is_built_in else None
        )
        self._told: list[say.SourceTold] = []
        self._worker: SourceProcess | None = None

    def start(self, layout: LiveLayout, deaths: WorkerDeaths, launch: Launch, objects: Objects) -> None:
        """Start the process of a source of the user's own; it is told what happened before."""
        if self._built_in is None:
            self._worker = SourceProcess(
                self._setup,
                layout,
                deaths,
                launch,
                lambda: say.OpenSource(
                    order=self._setup.data.order,
                    prompts=str(layout.prompts),
                    seed=self._setup.recipe.seed,
                    told=tuple(self._told),
                    objects=dict(objects),
                ),
            )

    @property
    def num_overlong(self) -> int:
        """None: which rows of a table are too long was known before the run."""
        return 0

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

    def read(self, plane: ControlPlane, at: float) -> Received:
        """Rows to offer to control now; a source in a process answers at a later turn."""
        received = Received()
        if plane.is_done:
            return received
        wanted = 0 if self._is_exhausted else num_wanted(self._setup, plane)
        if self._worker is not None:
            chosen: list[tuple[int, ...] | None] = []
            self._worker.words(wanted, lambda word: chosen.extend(_choices(word)))
            received.inputs += [self._offers.offer(rows, at) for rows in chosen]
        elif wanted:
            assert self._built_in is not None, "a source of the user's own is started before it is asked"
            received.inputs.append(self._offers.offer(self._built_in.choose(wanted), at))
        return received

    def close(self) -> None:
        if self._worker is not None:
            self._worker.handle.end(within_s=0.0)


def num_wanted(setup: RunSetup, plane: ControlPlane) -> int:
    """How many prompts to ask a source for now: none while enough are queued."""
    data, num_queued = setup.data, len(plane.prompts)
    low_water = data.order.low_water(
        plane.prompts.most_at_once, setup.recipe.batch.groups, is_stream=data.train.stream
    )
    return 2 * low_water - num_queued if num_queued < low_water else 0


def _choices(word: say.SourceWord) -> list[tuple[int, ...] | None]:
    """What a word of a source chooses: rows, None where no more will come, or nothing."""
    return [word.rows] if isinstance(word, say.RowsChosen) and word.rows != () else []


def table_source(data: DataConfig, table: PromptTable, *, seed: int) -> PromptSource:
    """The source of a built-in order over a table, or over several by their weights."""
    weights = [part.weight for part in data.train.parts if part.weight is not None]
    if not weights:
        return built_in_source(data.order, len(table.train), seed=seed)
    sources = [
        # A seed of its own for each, or tables of one size would go in step.
        built_in_source(data.order, num_rows, seed=seed + number)
        for number, num_rows in enumerate(table.part_rows)
    ]
    return WeightedParts(sources, table.part_rows, weights)
