"""What a built-in task is: rows, held-out rows, their reward and a length that suffices."""

from dora_rl.core.recipe.data import RewardConfig
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.core.record import Record
from dora_rl.envs.data.rows import Row


class Task(Record, frozen=True):
    """A built-in task: its rows, and the defaults of reward and length, which a recipe may override."""

    name: str
    train: list[Row]
    held_out: list[Row]
    rewards: tuple[RewardConfig, ...]
    """Default reward functions of the task; alone they give 1 at best."""
    max_new_tokens: int | None
    """Most tokens that a solution needs; characters, where the task is made for character models. None where
    that depends on what is played."""
    episode: EpisodeSettings | None = None
    """The episode that its rows are played in, where they take several turns; it gives the reward."""
