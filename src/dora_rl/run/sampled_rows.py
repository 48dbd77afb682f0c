"""A model answers rows, and rewards judge the answers: instances and reward workers without a trainer.

    prompts ──> instances (one version) ──> texts ──> reward workers ──> a group of samples a row

Every request is submitted at once: an engine has a queue of its own. Whoever dies ends it all, with its last
words. Never reaches torch.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from msgspec import field
from tokenizers import Tokenizer

from dora_rl.core.errors import DoraError
from dora_rl.core.named import Objects
from dora_rl.core.pass_rates import is_passed, pass_rates
from dora_rl.core.record import PlainValue, Record
from dora_rl.core.reward_means import mean_by_function
from dora_rl.core.stream_key import StreamKey
from dora_rl.engines.requests import Request, Stopping
from dora_rl.envs.data.rows import Prompt
from dora_rl.envs.scoring.reward_messages import Item, RewardFailure
from dora_rl.launch.protocol import Handle, Launch
from dora_rl.launch.waiting import Interrupts, wait_for
from dora_rl.run import messages as say
from dora_rl.run.instances import start_instance
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.rewards.judge import Judge
from dora_rl.run.rewards.pool import ScorerPool
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.worker_deaths import end_if_final, how_it_ended

_LOOK_EVERY_S = 0.2


class SampledText(Record, frozen=True):
    """One answer to a row, with what rewards said of it."""

    text: str
    num_tokens: int
    is_truncated: bool
    reward: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    """Value of each reward function by name."""
    extras: dict[str, PlainValue] = field(default_factory=dict)
    """What reward functions noted with `log_extra`, by column."""
    failures: tuple[RewardFailure, ...] = ()


class SampledRow(Record, frozen=True):
    """A row, and all the samples of it."""

    row: int
    prompt: Prompt
    samples: tuple[SampledText, ...]


class _Generated(Record, frozen=True):
    """A sample that was generated."""

    tokens: tuple[int, ...]
    is_truncated: bool


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
        self._num_rows = len(self._prompts.train) + len(self._prompts.held_out)
        self.is_held_out = not self._prompts.train
        """Whether the rows are held out; else they are those to train on."""
        self._num_samples = setup.recipe.evaluation.samples
        self._tokenizer = Tokenizer.from_file(str(self._layout.tokenizer))
        self._drawn: dict[int, list[int]] = {}
        self._members: dict[int, _Generated] = {}
        self._num_asked: Counter[int] = Counter()
        """Samples of each row that are to be judged."""
        self._judge: Judge | None = None
        self._pool: ScorerPool | None = None
        if is_judged:
            log = self._layout.rewards_log
            self._pool = self.enter_context(
                ScorerPool(setup.scoring, launch=launch, objects=objects, log=log)
            )
            self._judge = Judge(self._pool, setup.scoring.rewards)
        try:
            self._handles = [self._start(number) for number in range(setup.devices.instances)]
        except BaseException:
            # Whoever did not get this object cannot end what was started so far.
            self.close()
            raise
        self._last_words: str | None = None

    def rows(self, advance: Callable[[], None] = lambda: None) -> Iterator[SampledRow]:
        """Every row with its samples, as they are complete; `advance` is called for each sample that is."""
        if self._pool is not None:
            self._pool.wait_ready(self._prompts[0].row.columns)
        found: dict[int, dict[int, SampledText]] = {row: {} for row in range(self._num_rows)}
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

    def _start(self, number: int) -> Handle:
        handle = start_instance(number, self._setup, self._layout, self._prompts.stop_tokens, self._launch)
        self.callback(handle.end, within_s=0.0)
        return handle

    def _read(self) -> list[tuple[int, SampledText]]:
        """Samples that are complete since the last call, by number."""
        readable = [] if self._pool is None else [self._pool]
        wait_for(self._handles, readable, _LOOK_EVERY_S)
        if self._interrupts is not None and self._interrupts.count:
            raise KeyboardInterrupt
        ended = [
            number for instance, handle in enumerate(self._handles) for number in self._hear(instance, handle)
        ]
        if self._judge is None:
            return [(number, self._text(number)) for number in ended]
        for number in ended:
            self._ask(number, self._judge)
        return [
            (
                each.trajectory,
                self._text(
                    each.trajectory,
                    reward=each.reward,
                    values=each.values,
                    extras=each.extras,
                    failures=each.failures,
                ),
            )
            for each in self._judge.poll()
        ]

    def _hear(self, instance: int, handle: Handle) -> Iterator[int]:
        for message in handle.receive():
            match message:
                case say.Broken():
                    end_if_final(message)
                    self._last_words = message.message
                case say.InstanceReady():
                    handle.send(say.LoadVersion(version=0))
                case say.VersionLoaded():
                    self._submit(instance, handle)
                case say.Report():
                    for drawn in message.drawn:
                        self._drawn.setdefault(drawn.request, []).extend(drawn.tokens)
                case say.RequestEnded():
                    number = message.drawn.request
                    tokens = (*self._drawn.pop(number, ()), *message.drawn.tokens)
                    self._members[number] = _Generated(tokens=tokens, is_truncated=message.is_truncated)
                    yield number
                case say.RequestRefused():
                    raise DoraError(
                        f"the engine refused row {message.request // self._num_samples}: {message.reason}"
                    )
        if not handle.is_alive:
            reason = how_it_ended(
                handle.end(within_s=1.0), self._last_words, self._layout.instance_log(instance)
            )
            raise DoraError(
                f"instance {instance} {reason}", hint="`dora doctor` says what this machine lacks"
            )

    def _submit(self, instance: int, handle: Handle) -> None:
        """Give an instance its share of the requests: whole rows, whose samples share their prompt."""
        recipe = self._setup.recipe
        stopping = Stopping(
            max_new_tokens=self._setup.max_new_tokens, stop_strings=recipe.response.stop_strings
        )
        for row in range(instance, self._num_rows, len(self._handles)):
            for sample in range(self._num_samples):
                request = Request(
                    id=row * self._num_samples + sample,
                    version=0,
                    prompt=self._prompts[row].token_ids,
                    key=StreamKey(seed=recipe.seed, epoch=sample, row=row),
                    sampling=self._setup.evaluation_sampling,
                    stopping=stopping,
                    group=row,
                )
                handle.send(say.StartRequest(request=request))

    def _ask(self, number: int, judge: Judge) -> None:
        row, member = number // self._num_samples, self._members[number]
        item = Item(row=self._prompts[row].row, text=self._decoded(member), token_ids=member.tokens)
        judge.trajectory_ended(number, row, item)
        self._num_asked[row] += 1
        if self._num_asked[row] == self._num_samples:
            judge.group_ended(row)

    def _text(self, number: int, **judged: object) -> SampledText:
        member = self._members[number]
        return SampledText(
            text=self._decoded(member),
            num_tokens=len(member.tokens),
            is_truncated=member.is_truncated,
            **judged,  # type: ignore[arg-type]
        )

    def _decoded(self, member: _Generated) -> str:
        return str(self._tokenizer.decode(list(member.tokens), skip_special_tokens=True))


class SampleFigures(Record, frozen=True):
    """What a model's samples came to, over all rows."""

    num_rows: int
    is_held_out: bool
    """Whether the rows are held out; else the recipe holds none out, and they are those to train on."""
    num_samples: int
    """Samples of each row."""
    reward: float
    """Mean reward of the samples that have one; NaN where none has."""
    rewards: dict[str, float]
    """Mean of each reward function, over the samples it applies to."""
    pass_rates: dict[str, float]
    """pass@k by its name, for k = 1, 2, 4, ... and all samples."""
    mean_tokens: float
    truncated_share: float
    num_failed: int
    """Samples without a reward because a reward function failed."""


def figures(rows: list[SampledRow], setup: RunSetup, *, is_held_out: bool) -> SampleFigures:
    """Sum up samples that were judged."""
    asked, texts = setup.recipe.evaluation, [each for row in rows for each in row.samples]
    judged = [each.reward for each in texts if each.reward is not None]
    passed = [
        [is_passed(each.reward, each.values, asked.pass_function, asked.pass_reward) for each in row.samples]
        for row in rows
    ]
    return SampleFigures(
        num_rows=len(rows),
        is_held_out=is_held_out,
        num_samples=asked.samples,
        reward=math.fsum(judged) / len(judged) if judged else math.nan,
        rewards=mean_by_function(each.values for each in texts),
        pass_rates=pass_rates([[each for each in own if each is not None] for own in passed], asked.samples),
        mean_tokens=sum(each.num_tokens for each in texts) / max(1, len(texts)),
        truncated_share=sum(each.is_truncated for each in texts) / max(1, len(texts)),
        num_failed=sum(bool(each.failures) for each in texts),
    )
