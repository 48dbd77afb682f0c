"""Rows and rewards, looked at before anything starts: a misspelt column is an error now, not hours later."""

from pathlib import Path
from typing import Any

from dora_rl.algorithms.custom import load_advantage, load_loss
from dora_rl.core.errors import ConfigError
from dora_rl.core.named import OBJECT, Objects, import_command, import_place
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.algorithm import CustomAdvantageConfig
from dora_rl.core.recipe.data import DataConfig, RewardConfig
from dora_rl.core.recipe.loss_configs import CustomLossConfig
from dora_rl.core.record import Record
from dora_rl.envs.data.rows import Row
from dora_rl.envs.data.sources import Data, load_data
from dora_rl.envs.scoring.functions import check_columns, load_function
from dora_rl.envs.scoring.reward_messages import Needs
from dora_rl.envs.tokenized_prompts import tokenize_rows
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer
from dora_rl.prepare.messages import Doing, Given, Report
from dora_rl.run.prompt_table import PromptTable


class Inputs(Record, frozen=True):
    """The rows and reward functions of a run, read and checked."""

    rewards: tuple[RewardConfig, ...]
    max_new_tokens: int
    prompts: PromptTable
    """The tokenized rows, without those whose prompts are too long."""
    tokenizer: str
    """The model's tokenizer, as the file that turns token ids into text."""
    longest_prompt_tokens: int
    mean_prompt_tokens: int


def read_inputs(recipe: Recipe, model: Path, report: Report, given: Given) -> Inputs:
    """Load, check and tokenize the rows, once: the run goes on from what comes of it."""
    if recipe.data is None:
        raise ConfigError(
            "the recipe names no rows to train on",
            hint="set data.train.name to a task or a file: `dora init DIR`",
        )
    limit = ("patience.step_s", recipe.patience.step_s)
    report(Doing(what=f"reading the rows of {recipe.data.train.name}", limit=limit))
    data = load_data(recipe.data, given.tables)
    rewards = recipe.rewards or (data.task.rewards if data.task is not None else ())
    if not rewards:
        raise ConfigError(
            f"nothing judges the rows of '{recipe.data.train.name}'",
            hint="name a reward function: rewards: [{function: rewards.py:my_reward}]",
        )
    _check_rewards(rewards, data.train, recipe.scoring.start_limit_s, report, given.objects)
    _check_algorithm(recipe, report, given.objects)
    report(Doing(what="tokenizing the rows"))
    tokenizer = load_tokenizer(model)
    prompts = tokenize_data(data, recipe.data, tokenizer, model)
    lengths = [len(prompt.token_ids) for prompt in (*prompts.train, *prompts.held_out)]
    return Inputs(
        rewards=rewards,
        max_new_tokens=_max_new_tokens(recipe, data.task.max_new_tokens if data.task is not None else None),
        prompts=prompts,
        tokenizer=tokenizer.backend_tokenizer.to_str(),
        longest_prompt_tokens=max(lengths),
        mean_prompt_tokens=max(1, round(sum(lengths) / len(lengths))),
    )


def tokenize_data(data: Data, config: DataConfig, tokenizer: Any, model: Path) -> PromptTable:
    """Tokenize the rows, and find the tokens that end a completion of the model."""
    train = tokenize_rows(data.train, tokenizer, config)
    # Apart: held-out rows that are all too long are an error as well.
    held_out = tokenize_rows(data.held_out, tokenizer, config) if data.held_out else None
    return PromptTable(
        train=train.prompts,
        held_out=held_out.prompts if held_out else (),
        stop_tokens=tuple(sorted(load_eos_ids(model))),
        num_overlong=train.num_overlong,
        num_overlong_held_out=held_out.num_overlong if held_out else 0,
    )


def _check_rewards(
    rewards: tuple[RewardConfig, ...],
    rows: list[Row],
    start_limit_s: float,
    report: Report,
    objects: Objects,
) -> None:
    functions = []
    for reward in rewards:
        if reward.function.startswith(OBJECT) and reward.function.removeprefix(OBJECT) not in objects:
            # It stays in the process of the caller, which looks at it when the run begins.
            continue
        report(_importing(reward.function, start_limit_s))
        functions.append(load_function(reward, objects))
    columns = dict.fromkeys(name for row in rows for name in row.columns)
    check_columns([Needs(function=each.label, columns=each.required) for each in functions], columns)


def _check_algorithm(recipe: Recipe, report: Report, objects: Objects) -> None:
    """Try out a loss and an advantage of the user's own: what is wrong with them is known without a batch."""
    loss, advantage = recipe.algorithm.loss, recipe.algorithm.advantage
    if isinstance(loss, CustomLossConfig):
        report(_importing(loss.function, recipe.scoring.start_limit_s))
        load_loss(loss, objects)
    if isinstance(advantage, CustomAdvantageConfig):
        report(_importing(advantage.function, recipe.scoring.start_limit_s))
        load_advantage(advantage, objects)


def _importing(name: str, limit_s: float) -> Doing:
    place = import_place(name)
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
