"""Instances that sample from one version: rows answered and judged, or episodes played, without a trainer.

    prompts ──> instances (one version) ──> responses or turns ──> rewards ──> the samples of a row

Whoever dies ends it all, with its last words.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from dora_rl.core.errors import DoraError
from dora_rl.core.named import Objects
from dora_rl.engines.requests import DrawnTokens
from dora_rl.launch.protocol import Handle, Launch
from dora_rl.launch.waiting import Interrupts, Readable, wait_for
from dora_rl.run import messages as say
from dora_rl.run.instances import start_instance
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.rewards.pool import ScorerPool
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.sampling.played import PlayedEpisodes
from dora_rl.run.sampling.responses import SampledResponses
from dora_rl.run.sampling.samples import SampledRow, SampledText
from dora_rl.run.worker_deaths import end_if_final, how_it_ended

_LOOK_EVERY_S = 0.2


class SampleSource(Protocol):
    """Who has instances generate, and makes samples of what they do: of responses, or of episodes."""

    @property
    def handles(self) -> list[Handle]:
        """Processes of its own to wait for."""

    @property
    def readable(self) -> list[Readable]:
        """What else to wait for."""

    def begin(self) -> None:
        """Begin whatever needs no instance."""

    def loaded(self, instance: int) -> None:
        """An instance has the model: it may be given requests."""

    def drew(self, instance: int, drawn: DrawnTokens) -> None:
        """A request drew tokens."""

    def ended(self, instance: int, message: say.RequestEnded) -> None:
        """A request, or a turn of it, ended."""

    def refused(self, instance: int, message: say.RequestRefused) -> None:
        """The engine cannot carry out a request."""

    def poll(self) -> list[tuple[int, SampledText]]:
        """The samples that are complete since the last call, by number: the first row's come first."""


class SamplingSession(ExitStack):
    """The workers of one sampling; closed when its `with` ends."""

    def __init__(
        self,
        setup: RunSetup,
        *,
        is_judged: bool,
        launch: Launch,
        objects: Objects | None = None,
        interrupts: Interrupts | None = None,
    ) -> None:
        super().__init__()
        self._setup, self._launch, self._interrupts = setup, launch, interrupts
        self._layout = LiveLayout(root=Path(setup.run_directory))
        self._layout.logs.mkdir(exist_ok=True)
        self._prompts = PromptTable.read(self._layout.prompts)
        self.is_held_out = not self._prompts.train
        """Whether the rows are held out; else they are those to train on."""
        self._num_samples = setup.recipe.evaluation.samples
        self._handles: list[Handle] = []
        self._last_words: str | None = None
        try:
            self._source = self._opened_source(objects or {}, is_judged=is_judged)
            self._handles += [self._start(number) for number in range(setup.devices.instances)]
        except BaseException:
            # Whoever did not get this object cannot end what was started so far.
            self.close()
            raise

    def rows(self, advance: Callable[[], None] = lambda: None) -> Iterator[SampledRow]:
        """Every row with its samples, as they are complete; `advance` is called for each sample that is."""
        self._source.begin()
        found: dict[int, dict[int, SampledText]] = {row: {} for row in range(len(self._prompts.all_rows))}
        while found:
            for number, sample in self._read():
                advance()
                row = number // self._num_samples
                found[row][number] = sample
                if len(found[row]) == self._num_samples:
                    samples = tuple(text for _, text in sorted(found.pop(row).items()))
                    seen = self._prompts[row].row
                    yield SampledRow(row=seen.row, prompt=seen.prompt, samples=samples)

    # --- inside ---------------------------------------------------------------------------------

    def _opened_source(self, objects: Objects, *, is_judged: bool) -> SampleSource:
        setup, layout, launch = self._setup, self._layout, self._launch
        tokenizer = Tokenizer.from_file(str(layout.tokenizer))
        plays = setup.recipe.episode is not None

        def decode(tokens: tuple[int, ...]) -> str:
            # Where one message of an episode ends and the next begins is in special tokens.
            return str(tokenizer.decode(list(tokens), skip_special_tokens=not plays))

        if plays:
            played = PlayedEpisodes(
                setup, self._prompts, decode, self._send, layout=layout, launch=launch, objects=objects
            )
            return self.enter_context(played)
        pool = None
        if is_judged:
            pool = ScorerPool(setup.scoring, launch=launch, objects=objects, log=layout.rewards_log)
        return self.enter_context(SampledResponses(setup, self._prompts, decode, self._send, pool))

    def _send(self, instance: int, message: say.Message) -> None:
        self._handles[instance].send(message)

    def _start(self, number: int) -> Handle:
        handle = start_instance(number, self._setup, self._layout, self._prompts.stop_tokens, self._launch)
        self.callback(handle.end, within_s=0.0)
        return handle

    def _read(self) -> list[tuple[int, SampledText]]:
        """Samples that are complete since the last call, by number."""
        wait_for([*self._handles, *self._source.handles], self._source.readable, _LOOK_EVERY_S)
        if self._interrupts is not None and self._interrupts.count:
            raise KeyboardInterrupt
        for instance, handle in enumerate(self._handles):
            self._hear(instance, handle)
        return self._source.poll()

    def _hear(self, instance: int, handle: Handle) -> None:
        for message in handle.receive():
            match message:
                case say.Broken():
                    end_if_final(message)
                    self._last_words = message.message
                case say.InstanceReady():
                    handle.send(say.LoadVersion(version=0))
                case say.VersionLoaded():
                    self._source.loaded(instance)
                case say.Report():
                    for drawn in message.drawn:
                        self._source.drew(instance, drawn)
                case say.RequestEnded():
                    self._source.ended(instance, message)
                case say.RequestRefused():
                    self._source.refused(instance, message)
        if not handle.is_alive:
            reason = how_it_ended(
                handle.end(within_s=1.0), self._last_words, self._layout.instance_log(instance)
            )
            raise DoraError(
                f"instance {instance} {reason}", hint="`dora doctor` says what this machine lacks"
            )
