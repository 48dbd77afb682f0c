"""What a built-in task is."""

from dora_rl.core.recipe.data import RewardConfig
from dora_rl.core.record import Record
from dora_rl.envs.data.rows import Row


class Task(Record, frozen=True):
    """Rows and what goes with them; a recipe may say otherwise."""

    name: str
    train: list[Row]
    held_out: list[Row]
    rewards: tuple[RewardConfig, ...]
    """The default judgement: 1 at best, if these are the only rewards."""
    max_new_tokens: int
    """Enough for every solution; characters count as tokens where the task is made for character models."""
