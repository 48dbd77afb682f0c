"""Rows and rewards, looked at before anything starts: a misspelt column is an error now, not hours later."""

from pathlib import Path

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import import_command
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.data import DataConfig, RewardConfig
from dora_rl.core.record import Record
from dora_rl.envs.data.rows import Row
from dora_rl.envs.data.sources import load_data
from dora_rl.envs.prompts import PromptSet, tokenize_rows
from dora_rl.envs.scoring.functions import check_columns, load_function
from dora_rl.envs.scoring.messages import Needs
from dora_rl.model.tokenizer import load_tokenizer
from dora_rl.prepare.aside import Doing, Tell

_NONE = PromptSet(prompts=(), num_overlong=0)


class Inputs(Record, frozen=True):
    """What the data say about the run."""

    data: DataConfig
    rewards: tuple[RewardConfig, ...]
    max_new_tokens: int
    num_rows: int
    """That are trained on: without those whose prompts are too long."""
    num_held_out: int
    num_overlong: int
    num_overlong_held_out: int
    longest_prompt_tokens: int
    mean_prompt_tokens: int


def look_at(recipe: Recipe, model: Path, tell: Tell) -> Inputs:
    """Load, tokenize and check; the run itself does so again in processes of its own."""
    if recipe.data is None:
        raise ConfigError(
            "the recipe names no rows to train on",
            hint="set data.train.name to a task or a file: `dora init DIR`",
        )
    tell(Doing(what=f"reading the rows of {recipe.data.train.name}"))
    data = load_data(recipe.data)
    rewards = recipe.rewards or (data.task.rewards if data.task is not None else ())
    if not rewards:
        raise ConfigError(
            f"nothing judges the rows of '{recipe.data.train.name}'",
            hint="name a reward function: rewards: [{function: rewards.py:my_reward}]",
        )
    _check_rewards(rewards, data.train, recipe.scoring.start_limit_s, tell)
    tell(Doing(what="tokenizing the rows"))
    tokenizer = load_tokenizer(model)
    train = tokenize_rows(data.train, tokenizer, recipe.data)
    # Apart, as the run does it: held-out rows that are all too long are an error as well.
    held_out = tokenize_rows(data.held_out, tokenizer, recipe.data) if data.held_out else _NONE
    lengths = [len(prompt.token_ids) for prompt in (*train.prompts, *held_out.prompts)]
    return Inputs(
        data=recipe.data,
        rewards=rewards,
        max_new_tokens=_max_new_tokens(recipe, data.task.max_new_tokens if data.task is not None else None),
        num_rows=len(train.prompts),
        num_held_out=len(held_out.prompts),
        num_overlong=train.num_overlong,
        num_overlong_held_out=held_out.num_overlong,
        longest_prompt_tokens=max(lengths),
        mean_prompt_tokens=max(1, round(sum(lengths) / len(lengths))),
    )


def _check_rewards(
    rewards: tuple[RewardConfig, ...], rows: list[Row], start_limit_s: float, tell: Tell
) -> None:
    functions = []
    for reward in rewards:
        tell(_importing(reward, start_limit_s))
        functions.append(load_function(reward))
    columns = dict.fromkeys(name for row in rows for name in row.columns)
    check_columns([Needs(function=each.label, columns=each.required) for each in functions], columns)


def _importing(reward: RewardConfig, limit_s: float) -> Doing:
    place = reward.function.rpartition(":")[0] or reward.function
    return Doing(
        what=f"importing {place}",
        limit=("scoring.start_limit_s", limit_s),
        hint=f"`{import_command(place)}` shows what happens; "
        "what takes long or ends the process belongs into functions",
    )


def _max_new_tokens(recipe: Recipe, of_task: int | None) -> int:
    wanted = recipe.response.max_new_tokens or of_task
    if wanted is None:
        raise ConfigError(
            "the recipe does not say how long a response may be", hint="set response.max_new_tokens=256, say"
        )
    return wanted
