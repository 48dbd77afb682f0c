"""What the campaigns share: how many runs go side by side, and a table of what was counted."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dora_rl.prepare.machine import num_cores

MINUTES = float(os.environ.get("FAULT_MINUTES", "0.5"))
SEED = int(os.environ.get("FAULT_SEED", "0"))
RUNS_AT_ONCE = int(os.environ.get("FAULT_RUNS_AT_ONCE") or max(1, num_cores() * 3 // 4))


def side_by_side(do: Callable[[Any], Any], tasks: Iterable[Any]) -> list[Any]:
    """What comes of each task, in their order. The work is that of the runs, in processes of their own."""
    with ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
        return list(pool.map(do, tasks))


def table(title: str, counted: Counter[tuple[str, str]]) -> str:
    """Rows and columns by name, with their sums."""
    rows = sorted({row for row, _ in counted})
    columns = sorted({column for _, column in counted})
    width = max(map(len, (title, *rows)), default=0)
    lines = [f"{title:<{width}}" + "".join(f"{column:>12}" for column in (*columns, "all"))]
    for row in rows:
        numbers = [counted[row, column] for column in columns]
        lines.append(f"{row:<{width}}" + "".join(f"{number:>12}" for number in (*numbers, sum(numbers))))
    sums = [sum(counted[row, column] for row in rows) for column in columns]
    lines.append(f"{'all':<{width}}" + "".join(f"{number:>12}" for number in (*sums, counted.total())))
    return "\n".join(lines)
