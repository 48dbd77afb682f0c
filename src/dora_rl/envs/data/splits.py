"""Which rows are held out, and in which order an epoch goes through the rest.

Both are pure functions of a seed: a resumed run continues the order it had, and needs to remember only
(epoch, position).
"""

import random
from collections.abc import Sequence

from dora_rl.envs.data.rows import Row


def epoch_order(num_rows: int, *, seed: int, epoch: int) -> list[int]:
    """The positions 0 .. num_rows - 1 in the order in which this epoch visits them."""
    order = list(range(num_rows))
    # The control plane's prompt stream draws the same order from the same words.
    random.Random(f"prompts {seed} {epoch}").shuffle(order)
    return order


def held_out(rows: Sequence[Row], *, share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """The rows to train on and the rows to evaluate on, both in their order and with their numbers."""
    num_held_out = round(share * len(rows))
    if share and len(rows) > 1:
        # A share asked for is never nothing, and never everything.
        num_held_out = min(max(num_held_out, 1), len(rows) - 1)
    chosen = set(random.Random(f"held out {seed}").sample(range(len(rows)), num_held_out))
    train = [row for position, row in enumerate(rows) if position not in chosen]
    return train, [rows[position] for position in sorted(chosen)]
