"""One response to each row, as often as samples are wanted, judged by rewards.

Every request is submitted at once: an engine has a queue of its own.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from dora_rl.core.errors import DoraError
from dora_rl.core.stream_key import StreamKey
from dora_rl.engines.requests import DrawnTokens, Request, Stopping
from dora_rl.envs.scoring.reward_messages import Item
from dora_rl.launch.protocol import Handle
from dora_rl.launch.waiting import Readable
from dora_rl.run import messages as say
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.rewards.judge import Judge
from dora_rl.run.rewards.pool import ScorerPool
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.sampling.samples import SampledText


class SampledResponses(ExitStack):
    """Responses to rows as they are generated and judged. Implements SampleSource."""

    def __init__(
        self,
        setup: RunSetup,
        prompts: PromptTable,
        decode: Callable[[tuple[int, ...]], str],
        send: Callable[[int, say.Message], None],
        pool: ScorerPool | None,
    ) -> None:
        """Responses are judged by the workers of `pool`, which are ended with this; None: not at all."""
        super().__init__()
        self._setup, self._prompts, self._decode, self._send = setup, prompts, decode, send
        self._num_samples = setup.recipe.evaluation.samples
        self._drawn: dict[int, list[int]] = {}
        self._ended: dict[int, say.RequestEnded] = {}
        self._unjudged: list[int] = []
        """Samples that ended since the last look."""
        self._num_asked: Counter[int] = Counter()
        """Samples of each row that are to be judged."""
        self._pool = pool if pool is None else self.enter_context(pool)
        self._judge = None if pool is None else Judge(pool, setup.scoring.rewards)

    @property
    def handles(self) -> list[Handle]:
        return []

    @property
    def readable(self) -> list[Readable]:
        return [] if self._pool is None else [self._pool]

    def begin(self) -> None:
        if self._pool is not None:
            self._pool.wait_ready(self._prompts[0].row.columns)

    def loaded(self, instance: int) -> None:
        """Give an instance its share of the requests: whole rows, whose samples share their prompt."""
        recipe = self._setup.recipe
        stopping = Stopping(
            max_new_tokens=self._setup.max_new_tokens, stop_strings=recipe.response.stop_strings
        )
        for row in range(instance, len(self._prompts.all_rows), self._setup.devices.instances):
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
                self._send(instance, say.StartRequest(request=request))

    def drew(self, instance: int, drawn: DrawnTokens) -> None:
        self._drawn.setdefault(drawn.request, []).extend(drawn.tokens)

    def ended(self, instance: int, message: say.RequestEnded) -> None:
        self.drew(instance, message.drawn)
        self._ended[message.drawn.request] = message
        self._unjudged.append(message.drawn.request)

    def refused(self, instance: int, message: say.RequestRefused) -> None:
        row = message.request // self._num_samples
        raise DoraError(f"the engine refused row {row}: {message.reason}")

    def poll(self) -> list[tuple[int, SampledText]]:
        ended, self._unjudged = self._unjudged, []
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

    def _ask(self, number: int, judge: Judge) -> None:
        row, tokens = number // self._num_samples, tuple(self._drawn[number])
        item = Item(row=self._prompts[row].row, text=self._decode(tokens), token_ids=tokens)
        judge.trajectory_ended(number, row, item)
        self._num_asked[row] += 1
        if self._num_asked[row] == self._num_samples:
            judge.group_ended(row)

    def _text(self, number: int, **judged: object) -> SampledText:
        tokens, ended = tuple(self._drawn.pop(number)), self._ended.pop(number)
        return SampledText(
            text=self._decode(tokens),
            num_tokens=len(tokens),
            is_truncated=ended.is_truncated,
            **judged,  # type: ignore[arg-type]
        )
