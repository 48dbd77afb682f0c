"""`seeds`: rows that are a number each, for environments that draw their own tasks.

A row has no prompt: its column `seed` is what an environment is reset with. The held-out numbers are others.
"""

from dora_rl.core.errors import UserError
from dora_rl.envs.data.rows import read_rows
from dora_rl.envs.tasks.task import Task


def seeds(*, seed: int, rows: int = 1000, held_out_rows: int = 100) -> Task:
    """The task `seeds`: numbers in a row, from a place that the run's seed says."""
    if rows < 1 or held_out_rows < 0:
        raise UserError(
            f"seeds has no {rows} rows and {held_out_rows} held-out ones",
            hint="give rows >= 1 and held_out_rows >= 0",
        )
    # Every run's seed has numbers of its own, and environments take 31 bits.
    first = (seed * 1_000_003) % 2**30
    held_out = [{"seed": first + number} for number in range(held_out_rows)]
    train = [{"seed": first + held_out_rows + number} for number in range(rows)]
    return Task(
        name="seeds",
        train=read_rows(train, {}, "seeds", needs_prompt=False),
        held_out=read_rows(held_out, {}, "seeds", needs_prompt=False) if held_out else [],
        rewards=(),
        max_new_tokens=None,
    )
