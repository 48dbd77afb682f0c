"""What an episode gets for asking: a turn, or the news that there is none."""

from typing import Literal

from msgspec import Struct

from dora_rl.core.errors import DoraError
from dora_rl.core.turn_finish import TurnFinish
from dora_rl.envs.chat.messages import Message
from dora_rl.envs.chat.tool_calls import ToolCall
from dora_rl.envs.episodes.episode_messages import Truncation


class Turn(Struct, frozen=True, kw_only=True):
    """What the policy answered."""

    text: str
    """What it said, without what it thought and without its tool calls."""
    thinking: str
    """What it thought; empty where it thought nothing."""
    tool_calls: tuple[ToolCall, ...]
    """The tools it called, in order; of one that cannot be read, the problem."""
    message: Message
    """The answer as a message in OpenAI's form."""
    finish: TurnFinish
    """Whether it stopped by itself, or was cut at the limit of its tokens."""
    tokens: tuple[int, ...]
    """The ids as they were drawn."""


TruncationReason = Truncation | Literal["time"]
"""Why there is no further turn: what the run says, or that the episode's own time is used up."""


class EpisodeTruncated(DoraError):
    """There is no further turn for this episode: who catches it may still return a reward.

    `reason` is `context` (the branch is full), `turns` (all are taken), `deadline` (the run cannot wait any
    longer) or `time` (the episode took longer than `episode.limit_s` beside its turns).
    """

    def __init__(self, reason: TruncationReason) -> None:
        super().__init__(f"truncated: {reason}")
        self.reason = reason


class EpisodeClosed(DoraError):
    """The run has ended this episode, and nothing its code asks for any more is answered."""
