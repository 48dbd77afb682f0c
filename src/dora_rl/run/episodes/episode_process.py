"""A process that episodes run in, as the pool sees it. Waits for nothing."""

from msgspec import Struct, field

from dora_rl.envs.episodes.episode_messages import BeginEpisode
from dora_rl.launch.protocol import Handle

AttemptKey = tuple[bool, int, int, int, int]
"""Which member's attempt an episode is, however often it is begun."""


def attempt_of(begin: BeginEpisode) -> AttemptKey:
    """The member's attempt that an episode is."""
    return (begin.is_evaluation, begin.epoch, begin.row.row, begin.member, begin.attempt)


class BegunEpisode(Struct, kw_only=True, eq=False):
    """An episode that a process was given."""

    begin: BeginEpisode
    is_waiting: bool = False
    """Whether it waits for the run; otherwise its code runs."""


class EpisodeProcess(Struct, kw_only=True, eq=False):
    """The process of a number, and what is known of it."""

    number: int
    handle: Handle
    since: float
    """When it was started, in seconds of the pool's clock."""
    heard_at: float
    is_ready: bool = False
    is_leaving: bool = False
    """Whether it gets no new episode, and ends with those it has."""
    last_words: str | None = None
    episodes: dict[int, BegunEpisode] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"episode worker {self.number}"

    def trouble(self, now: float, *, start_s: float, silence_s: float) -> str | None:
        """Why a process that is alive must be given up, or None."""
        if not self.is_ready:
            is_late = now - self.since > start_s
            return f"was not ready within patience.start_s = {start_s:g} s" if is_late else None
        return f"was silent for {silence_s:g} s" if now - self.heard_at > silence_s else None
