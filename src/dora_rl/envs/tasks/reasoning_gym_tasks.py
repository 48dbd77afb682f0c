"""`reasoning_gym:NAME`: the procedural tasks of the package reasoning-gym, judged by its own scorers.

Its scorers may raise on answers they cannot read; such an answer is worth 0. `lenient` also tries the
last number of the text, for models that do not keep to a format.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dora_rl.core.errors import UserError
from dora_rl.core.named import did_you_mean, optional_module
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.data.rows import read_rows
from dora_rl.envs.rewards.numbers import last_number
from dora_rl.envs.rewards.texts import Completion, text_of
from dora_rl.envs.tasks.plain_values import packed, unpacked
from dora_rl.envs.tasks.task import Task

_SEED_STRIDE = 1_000_003
_INSTRUCTION = "Give only your final answer inside <answer> and </answer>."


def reasoning_gym(
    *,
    seed: int,
    name: str,
    rows: int = 2000,
    held_out_rows: int = 200,
    config: Mapping[str, Any] | None = None,
    lenient: bool = True,
    instruction: str = _INSTRUCTION,
) -> Task:
    """The task `reasoning_gym:NAME`: rows of one of its data sets, the first ones held out.

    A problem that is held out is not trained on.
    """
    entries = list(_entries(name, seed=seed, size=rows + held_out_rows, config=config or {}))
    held_out = entries[:held_out_rows]
    unseen = {entry["question"] for entry in held_out}
    train = [entry for entry in entries[held_out_rows:] if entry["question"] not in unseen]
    return Task(
        name=f"reasoning_gym:{name}",
        train=read_rows(_table(train, name, instruction), {}, name),
        held_out=read_rows(_table(held_out, name, instruction), {}, name),
        rewards=(RewardConfig(function="reasoning_gym_reward", options={"lenient": lenient}),),
        max_new_tokens=512,
    )


def reasoning_gym_reward(
    completions: Sequence[Completion],
    reasoning_task: Sequence[str],
    entry: Sequence[Any],
    *,
    lenient: bool = True,
    **columns: Any,
) -> list[float]:
    """The data set's own score of an answer; if `lenient`, the best of several ways to read it."""
    return [
        max(_score(answer, name, unpacked(plain)) for answer in _answers(text_of(completion), lenient))
        for completion, name, plain in zip(completions, reasoning_task, entry, strict=True)
    ]


def _answers(text: str, lenient: bool) -> list[str]:
    tagged = text.rpartition("<answer>")[2].partition("</answer>")[0].strip()
    number = last_number(text)
    return [tagged, number] if lenient and number is not None else [tagged]


def _score(answer: str, name: str, entry: dict[str, Any]) -> float:
    try:
        return float(_package().get_score_answer_fn(name)(answer=answer, entry=entry))
    except Exception:  # a scorer that cannot read the answer: the answer is wrong
        return 0.0


def _entries(name: str, *, seed: int, size: int, config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    package = _package()
    known = list(package.factory.DATASETS)
    if name not in known:
        raise UserError(f"reasoning-gym has no data set '{name}'", hint=did_you_mean(name, known, "it has"))
    try:
        # Its row i is a function of seed + i: neighbouring seeds would share all rows but one.
        yield from package.create_dataset(name, seed=seed * _SEED_STRIDE, size=size, **config)
    except (TypeError, AssertionError) as error:
        raise UserError(f"reasoning-gym refuses the config of '{name}': {error}") from error


def _table(entries: list[dict[str, Any]], name: str, instruction: str) -> Iterator[dict[str, Any]]:
    for entry in entries:
        yield {
            "prompt": [{"role": "user", "content": f"{entry['question']}\n{instruction}"}],
            "solution": f"<answer>{entry['answer']}</answer>",
            "reasoning_task": name,
            "entry": packed(entry),
        }


def _package() -> Any:
    return optional_module("reasoning_gym", needed_for="a reasoning_gym task", install="reasoning-gym")
