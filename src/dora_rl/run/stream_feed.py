"""The prompts of a live run whose rows are a stream: read, tokenized and numbered as they are needed.

    the stream ──> reader, a process with the user's code and a tokenizer ──> RowRead
                                                                                 │
    control's queue <── PromptsOffered, journalled together with the row <───────┘

The first rows were read when the run was prepared, and are offered first. Resuming needs no row that was
offered a second time: the journal has it, and the reader goes on behind the last.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from dora_rl.control.plane import ControlPlane
from dora_rl.core.decisions import Decision
from dora_rl.core.inputs import Input, PromptsOffered, QueuedPrompt
from dora_rl.core.named import Objects
from dora_rl.envs.prompt_offers import GroupScores
from dora_rl.launch.protocol import Handle, Launch
from dora_rl.run import source_messages as say
from dora_rl.run.prompt_feed import Feed, PromptFeed, num_wanted
from dora_rl.run.prompt_table import RunPrompts
from dora_rl.run.received import Received
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.source_process import SourceProcess
from dora_rl.run.worker_deaths import WorkerDeaths
from dora_rl.store.journal_records import StreamedRow


def open_feed(setup: RunSetup, prompts: RunPrompts) -> Feed:
    """The feed of a run: of a stream, or of a table of rows."""
    return StreamFeed(setup, prompts) if setup.data.train.stream else PromptFeed(setup, prompts)


class StreamFeed:
    """Offers the rows of a stream to control as they are read. Implements Feed."""

    def __init__(self, setup: RunSetup, prompts: RunPrompts) -> None:
        self._setup = setup
        self._prompts = prompts
        self._scores = GroupScores(group_size=setup.recipe.batch.group_size)
        self._num_first = 0
        """How many of the rows that were read before the run are offered."""
        self._next_place = prompts.table.num_read
        """Place in the stream of the row that is read next."""
        self._num_streamed = 0
        """How many rows that were read while the run was going are offered."""
        self._is_ended = False
        self._told: list[say.SourceTold] | None = []
        """All that a stream which hears scores was told; None once this one is known to hear none."""
        self._worker: SourceProcess | None = None

    def start(self, layout: LiveLayout, deaths: WorkerDeaths, launch: Launch, objects: Objects) -> None:
        """Start the reader, which goes on behind the last row that was offered."""
        setup, first = self._setup, self._prompts.table.train[0]

        def opening() -> say.OpenStream:
            return say.OpenStream(
                data=setup.data,
                model=setup.model_directory,
                place=self._next_place,
                columns=tuple(first.row.columns),
                told=tuple(self._told or ()),
                objects=dict(objects),
            )

        if not self._is_ended:
            self._worker = SourceProcess(setup, layout, deaths, launch, opening)

    @property
    def num_overlong(self) -> int:
        """Rows read while the run was going that were left out because their prompts are too long."""
        return self._next_place - self._prompts.table.num_read - self._num_streamed

    @property
    def handles(self) -> list[Handle]:
        """Handles of processes whose messages the loop waits for."""
        return [self._worker.handle] if self._worker is not None and self._worker.is_started else []

    def watch(self, told: Input, decisions: Sequence[Decision]) -> None:
        """Count what was offered, and let go of the rows of groups that have ended."""
        if isinstance(told, PromptsOffered):
            self._is_ended |= told.is_last
            num_known = len(self._prompts.table.train)
            num_first = sum(prompt.row < num_known for prompt in told.prompts)
            self._num_first += num_first
            self._num_streamed += len(told.prompts) - num_first
            places = tuple(self._prompts.place(prompt.row) for prompt in told.prompts)
            self._next_place = max(self._next_place, *(place + 1 for place in places), 0)
            self._tell(say.RowsOffered(rows=places))
        for score in self._scores.watch(told, decisions):
            self._prompts.forget(score.row)
            self._tell(say.GroupScored(score=replace(score, row=self._prompts.place(score.row))))

    def _tell(self, message: say.SourceTold) -> None:
        if self._told is not None:
            self._told.append(message)
            if self._worker is not None:
                self._worker.handle.send(message)

    def read(self, plane: ControlPlane, at: float) -> Received:
        """Rows of the stream to offer to control now, with what the journal keeps of them."""
        received, first = Received(), self._prompts.table.train[self._num_first :]
        if plane.is_done or self._is_ended:
            return received
        wanted = num_wanted(self._setup, plane)
        if first and wanted:
            known = range(self._num_first, len(self._prompts.table.train))
            received.inputs.append(self._offer(known[:wanted], at))
        # The reader is asked only behind them, and always heard: words left lying would wake the loop.
        rows, is_ended = self._read(0 if first else wanted)
        if rows or is_ended:
            received.payloads += rows
            received.inputs.append(self._offer([each.row for each in rows], at, is_last=is_ended))
        return received

    def _offer(self, rows: Sequence[int], at: float, *, is_last: bool = False) -> PromptsOffered:
        prompts = (QueuedPrompt(epoch=0, row=row, tokens=len(self._prompts[row].token_ids)) for row in rows)
        return PromptsOffered(at=at, prompts=tuple(prompts), is_last=is_last)

    def _read(self, wanted: int) -> tuple[list[StreamedRow], bool]:
        """The rows that the reader has read, and whether that was the end; asks it for more if wanted."""
        rows: list[StreamedRow] = []
        is_ended = False

        def hear(word: say.SourceWord) -> None:
            nonlocal is_ended
            match word:
                case say.SourceReady() if not word.hears_scores:
                    self._told = None
                case say.RowRead():
                    # Before it is durable: a reader that dies in the same turn goes on behind it.
                    self._next_place = word.prompt.row.row + 1
                    rows.append(self._prompts.add(word.prompt))
                case say.RowsRead():
                    is_ended |= word.is_ended

        if self._worker is not None:
            self._worker.words(wanted, hear)
        return rows, is_ended

    def close(self) -> None:
        if self._worker is not None:
            self._worker.handle.end(within_s=0.0)
