"""Built-in tasks: seeded rows, held-out rows, the reward that goes with them and a length that suffices.

A name is chosen from this table; `family:NAME` passes NAME on. Every row of a task with one response has a
column `solution`, a completion that earns the full reward, and may have a `demonstration` for a warm start.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import did_you_mean, load_named
from dora_rl.envs.tasks.task import Task

__all__ = ["TASKS", "Task", "load_task"]

TASKS = {
    "count": "dora_rl.envs.tasks.count:count",
    "letters": "dora_rl.envs.tasks.letters:letters",
    "arithmetic": "dora_rl.envs.tasks.arithmetic:arithmetic",
    "seeds": "dora_rl.envs.tasks.seeds:seeds",
    "tools": "dora_rl.envs.tasks.tools:tools",
    "bfcl": "dora_rl.envs.tasks.bfcl:bfcl",
    "textworld": "dora_rl.envs.tasks.textworld_games:textworld",
    "gsm8k": "dora_rl.envs.tasks.gsm8k:gsm8k",
    "reasoning_gym": "dora_rl.envs.tasks.reasoning_gym_tasks:reasoning_gym",
}


def load_task(name: str, *, seed: int, options: Mapping[str, Any]) -> Task:
    """Make the task of this name, `family` or `family:NAME`."""
    family, _, variant = name.partition(":")
    if family not in TASKS:
        raise UserError(f"there is no task '{family}'", hint=did_you_mean(family, list(TASKS), "tasks"))
    make = load_named(TASKS[family])
    given = {**options, **({"name": variant} if variant else {})}
    _check_options(name, make, given)
    task = make(seed=seed, **given)
    assert isinstance(task, Task), f"{family} makes a task"
    return task


def _check_options(name: str, make: Any, given: Mapping[str, Any]) -> None:
    parameters = inspect.signature(make).parameters
    known = [parameter for parameter in parameters if parameter != "seed"]
    for option in given:
        if option not in known:
            raise UserError(
                f"the task '{name}' has no option '{option}'", hint=did_you_mean(option, known, "it takes")
            )
    for option in known:
        if parameters[option].default is inspect.Parameter.empty and option not in given:
            raise UserError(
                f"the task '{name}' needs the option '{option}'", hint=f"options: {{{option}: ...}}"
            )
