"""An episode for each sample of each row: turns and environments as in a run, with nothing to decide.

What control says in a run follows here from what it would be told: an environment that is reset starts, one
that replied goes on, one that failed is opened again as often as `control.environment_tries` allows. Nothing
is written down: who dies takes the samples along.
"""

from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack

from msgspec.structs import replace

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.named import Objects
from dora_rl.engines.requests import DrawnTokens
from dora_rl.launch.protocol import Handle, Launch
from dora_rl.launch.waiting import Readable
from dora_rl.run import messages as say
from dora_rl.run.episodes.host import EpisodeHost
from dora_rl.run.episodes.opened_prompts import open_pool
from dora_rl.run.generation import Generation
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.received import AnswerOperation, Received
from dora_rl.run.request_table import RequestTable
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.sampling.samples import EnvironmentFailure, SampledText
from dora_rl.run.worker_deaths import WorkerDeaths

_OPEN_PER_SLOT = 2
"""Episodes at a time where the recipe does not say: while one waits, another generates."""


class PlayedEpisodes(ExitStack):
    """Episodes of all rows, from the reset of their environments to the rewards. Implements SampleSource."""

    def __init__(
        self,
        setup: RunSetup,
        prompts: PromptTable,
        decode: Callable[[tuple[int, ...]], str],
        send: Callable[[int, say.Message], None],
        *,
        layout: LiveLayout,
        launch: Launch,
        objects: Objects,
    ) -> None:
        """Starts the processes that episodes run in; they end with this."""
        super().__init__()
        recipe, episode = setup.recipe, setup.recipe.episode
        assert episode is not None, "rows with one response are no episodes"
        self._decode, self._send = decode, send
        self._num_samples, self._num_instances = recipe.evaluation.samples, setup.devices.instances
        self._group_size = recipe.batch.group_size
        self._tries = recipe.control.environment_tries
        slots = self._num_instances * setup.engine.limits.max_running
        self._most_open = episode.most_open or _OPEN_PER_SLOT * slots
        self._unopened = deque(range(len(prompts.all_rows) * self._num_samples))
        self._num_open = 0
        self._requests = RequestTable()
        deaths = WorkerDeaths(recipe.patience, layout.orchestrator_log)
        self._pool = open_pool(setup, layout, deaths, launch, objects)
        self.callback(self._pool.close)
        self._host = EpisodeHost(setup, prompts, self._requests, self._pool, layout.environments_log)
        self._generation = Generation(setup, prompts, self._requests, send, self._host)
        self._loaded: set[int] = set()
        self._early: list[do.Start] = []
        """Starts that wait for their instance to have the model."""
        self._starts: dict[int, do.Start] = {}
        """The newest Start of every episode in progress, by trajectory."""
        self._branches: dict[int, dict[int, list[int]]] = {}
        """Tokens of each branch, by trajectory and branch."""
        self._num_turns: Counter[int] = Counter()
        self._ended: dict[int, told.EpisodeEnded] = {}
        self._complete: list[tuple[int, SampledText]] = []

    @property
    def handles(self) -> list[Handle]:
        return self._pool.handles

    @property
    def readable(self) -> list[Readable]:
        return []

    def begin(self) -> None:
        """Have environments reset, as many as may be open."""
        while self._unopened and self._num_open < self._most_open:
            row, sample = divmod(self._unopened.popleft(), self._num_samples)
            self._num_open += 1
            self._host.open(do.Open(epoch=sample, row=row, is_evaluation=True))

    def loaded(self, instance: int) -> None:
        self._loaded.add(instance)
        early, self._early = self._early, []
        for start in early:
            self._start(start)

    # --- instances ------------------------------------------------------------------------------

    def drew(self, instance: int, drawn: DrawnTokens) -> None:
        placed = self._requests.find(drawn.request, instance)
        if placed is not None:
            self._requests.partial[placed.trajectory].tokens += drawn.tokens

    def ended(self, instance: int, message: say.RequestEnded) -> None:
        self.drew(instance, message.drawn)
        placed = self._requests.find(message.drawn.request, instance)
        if placed is None:
            return  # Its episode ended meanwhile.
        partial, key = self._requests.turn_ended(placed, is_held=message.is_held), placed.trajectory
        assert partial.episode_turn is not None, f"trajectory {key} has no turn"
        self._branches[key][partial.episode_turn.branch] = partial.tokens
        self._num_turns[key] += 1
        self._carry_out(self._host.turn_ended(key, message.finish))

    def refused(self, instance: int, message: say.RequestRefused) -> None:
        placed = self._requests.find(message.request, instance)
        if placed is not None:
            self._requests.forget(placed.trajectory)
            self._failed(placed.trajectory, f"the engine refused it: {message.reason}")

    # --- episodes -------------------------------------------------------------------------------

    def poll(self) -> list[tuple[int, SampledText]]:
        self._carry_out(self._host.read(0.0))
        self.begin()
        complete, self._complete = self._complete, []
        return complete

    def _carry_out(self, received: Received) -> None:
        for effect in received.effects:
            assert isinstance(effect, AnswerOperation), f"{effect} is of a run that goes on"
            self._host.answer(effect)
        for word in received.inputs:
            match word:
                case told.Opened():
                    self._opened(word)
                case told.OpenFailed(epoch=sample, row=row, reason=reason):
                    self._end(row * self._num_samples + sample, _unplayed(reason))
                case told.EnvironmentReplied(trajectory=key, tokens=tokens, context=None):
                    instance = self._starts[key].instance
                    resume = do.Resume(instance=instance, trajectory=key, appended_tokens=tokens)
                    self._generation.resume(resume)
                case told.EnvironmentReplied(trajectory=key):
                    self._free(key)
                    self._start(self._starts[key])
                case told.EnvironmentFailed(trajectory=key, reason=reason):
                    self._failed(key, reason)
                case told.EpisodeEnded(trajectory=key):
                    self._free(key)
                    self._ended[key] = word
                case told.Scored():
                    self._scored(word)

    def _opened(self, opened: told.Opened) -> None:
        number = opened.row * self._num_samples + opened.epoch
        start = do.Start(
            instance=opened.row % self._num_instances,
            version=0,
            trajectory=number * self._group_size,
            group=number,
            epoch=opened.epoch,
            row=opened.row,
            member=0,
            attempt=0,
            prompt_tokens=opened.tokens,
            evaluation=True,
        )
        self._host.prompt_of(start)
        self._branches[start.trajectory] = {}
        self._start(start)

    def _start(self, start: do.Start) -> None:
        self._starts[start.trajectory] = start
        if start.instance in self._loaded:
            self._generation.start(start)
        else:
            self._early.append(start)

    def _failed(self, key: int, reason: str) -> None:
        """Begin the next attempt of an episode whose environment failed, if it has one."""
        self._free(key)
        start = self._starts[key]
        self._early = [each for each in self._early if each.trajectory != key]
        self._branches[key], self._num_turns[key] = {}, 0
        if start.attempt + 1 < self._tries:
            self._starts[key] = replace(start, attempt=start.attempt + 1)
            self._host.reopen(do.Reopen(trajectory=key, attempt=start.attempt + 1))
            return
        self._host.forget(key)
        self._requests.partial.pop(key, None)
        del self._starts[key], self._branches[key], self._num_turns[key]
        self._end(key // self._group_size, _unplayed(reason))

    def _scored(self, scored: told.Scored) -> None:
        key = scored.trajectory
        ended = self._ended.pop(key)
        del self._starts[key]
        branches = [branch for _, branch in sorted(self._branches.pop(key).items())]
        text = SampledText(
            text="\n\n".join(self._decode(tuple(tokens)) for tokens in branches),
            num_tokens=ended.tokens,
            is_truncated=ended.truncated,
            reward=scored.reward,
            values=scored.values,
            num_turns=self._num_turns.pop(key),
        )
        self._end(key // self._group_size, text)

    def _end(self, number: int, text: SampledText) -> None:
        self._num_open -= 1
        self._complete.append((number, text))

    def _free(self, key: int) -> None:
        """Take what an instance holds of an episode off it."""
        placed = self._requests.of(key)
        if placed is not None:
            self._requests.forget(key)
            self._send(placed.instance, say.AbortRequest(request=placed.number))


def _unplayed(reason: str) -> SampledText:
    failure = EnvironmentFailure(detail=reason)
    return SampledText(text="", num_tokens=0, is_truncated=False, failures=(failure,), num_turns=0)
