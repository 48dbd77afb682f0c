"""Environments that are reset before their group is admitted: a slow reset ages nobody.

The prompt of a group is what the first contexts of its members have in common; what differs behind it is the
environment's part of each member's response.
"""

from itertools import takewhile

from msgspec import Struct

from dora_rl.core.named import Objects
from dora_rl.envs.episodes.episode_messages import OpenWorker
from dora_rl.launch.protocol import Launch
from dora_rl.run.episodes.episode_record import EpisodeRecord
from dora_rl.run.episodes.pool import EpisodePool
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.worker_deaths import WorkerDeaths
from dora_rl.store.journal_records import EarlyOnce, EpisodeContexts

PromptKey = tuple[bool, int, int]
"""Whether a prompt is evaluated, its epoch and its row."""


class OpeningPrompt(Struct, kw_only=True):
    """A queued prompt and the episodes of its members, which run up to their first turns."""

    key: PromptKey
    members: list[EpisodeRecord]
    prompt: tuple[int, ...] = ()
    """What the members' first contexts have in common; empty until all are there."""

    @property
    def contexts(self) -> list[tuple[int, ...]]:
        """The first contexts of the members, as far as they are there."""
        return [each.first_context for each in self.members if each.first_context]

    @property
    def is_complete(self) -> bool:
        """Whether every member's environment is reset."""
        return len(self.contexts) == len(self.members)

    def settle(self) -> None:
        """Find the prompt, now that every context is there."""
        shared = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*self.contexts, strict=False))
        self.prompt = tuple(tokens[0] for tokens in shared)

    @property
    def onces(self) -> tuple[tuple[EarlyOnce, ...], ...]:
        """The side effects of each member before its first turn; empty where none had any."""
        found = tuple(member.early_onces() for member in self.members)
        return found if any(found) else ()

    def recall(self, opened: EpisodeContexts) -> None:
        """Fill in what the members began with, and how they came to it, before the run was cut short."""
        for member, context in zip(self.members, opened.contexts, strict=True):
            member.first_context = context
        for member, onces in zip(self.members, opened.onces, strict=False):
            member.recall_early(onces)
        self.settle()


def open_pool(
    setup: RunSetup, layout: LiveLayout, deaths: WorkerDeaths, launch: Launch, objects: Objects
) -> EpisodePool:
    """The processes that the episodes of a run are played in."""
    recipe, episode = setup.recipe, setup.recipe.episode
    assert episode is not None, "a run without episodes has no processes for them"
    opening = OpenWorker(
        run=setup.run_directory,
        function=episode.function,
        options=episode.options,
        tokenizer=setup.model_directory,
        thinking=episode.thinking,
        tool_calls=episode.tool_calls,
        template_options=setup.data.template_options,
        sandbox=episode.sandbox,
        memory_bytes=episode.memory_bytes,
        start_limit_s=episode.start_limit_s,
        call_limit_s=episode.call_limit_s,
        limit_s=episode.limit_s,
        rewards=recipe.rewards,
        endpoint=episode.endpoint,
        roles=recipe.roles or {},
        objects=dict(objects),
    )
    return EpisodePool(
        opening,
        processes=episode.processes,
        per_process=episode.per_process,
        launch=launch,
        deaths=deaths,
        log=layout.episodes_log,
        start_s=recipe.patience.start_s,
        silence_s=recipe.control.silence_s,
    )
