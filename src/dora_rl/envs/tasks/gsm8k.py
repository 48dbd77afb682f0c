"""`gsm8k`: grade-school word problems from a local JSON-lines file with columns `question` and `answer`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.envs.config import RewardConfig
from dora_rl.envs.data.files import read_file
from dora_rl.envs.data.splits import held_out
from dora_rl.envs.tasks.task import Task, numbered

_INSTRUCTION = "Think step by step, then give the final number after ####."


def gsm8k(
    *,
    seed: int,
    path: str,
    held_out_path: str | None = None,
    held_out_share: float = 0.05,
    instruction: str = _INSTRUCTION,
) -> Task:
    """Held out: another file, else a seeded share of this one."""
    rows = numbered(_table(Path(path), instruction), path)
    train, kept = held_out(rows, share=0.0 if held_out_path else held_out_share, seed=seed)
    if held_out_path is not None:
        kept = numbered(_table(Path(held_out_path), instruction), held_out_path)
    return Task(
        name="gsm8k",
        train=train,
        held_out=kept,
        rewards=(RewardConfig(function="accuracy_reward"),),
        max_new_tokens=512,
    )


def _table(path: Path, instruction: str) -> Iterator[dict[str, Any]]:
    for number, raw in enumerate(read_file(path)):
        if not {"question", "answer"} <= raw.keys() or "####" not in str(raw["answer"]):
            raise UserError(
                f"{path}, row {number} has no 'question' and 'answer' with a number after ####",
                hint="for other columns use the file itself as the source",
            )
        content = f"{raw['question']}\n{instruction}"
        yield {"prompt": [{"role": "user", "content": content}], "solution": raw["answer"]}
