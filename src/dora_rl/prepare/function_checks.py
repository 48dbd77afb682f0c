"""The user's functions, tried out before anything starts: a misspelt column is an error now, not later."""

from dora_rl.algorithms.custom import load_advantage, load_loss
from dora_rl.core.errors import ConfigError
from dora_rl.core.named import OBJECT, Objects, import_command, import_place
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.algorithm import CustomAdvantageConfig
from dora_rl.core.recipe.loss_configs import CustomLossConfig
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.episode_function import load_episode
from dora_rl.envs.episodes.judge import load_judging
from dora_rl.envs.scoring.functions import check_columns, load_function
from dora_rl.envs.scoring.reward_messages import Needs
from dora_rl.prepare.messages import Doing, Report


def check_functions(recipe: Recipe, rows: list[Row], report: Report, objects: Objects) -> None:
    """Try out rewards, an episode, a loss and an advantage of the user's, as far as that needs no batch."""
    functions, limit_s = [], recipe.scoring.start_limit_s
    for reward in recipe.rewards:
        if reward.function.startswith(OBJECT) and reward.function.removeprefix(OBJECT) not in objects:
            if recipe.episode is not None:
                raise ConfigError(
                    f"the reward '{reward.label}' cannot be sent to the processes that episodes run in",
                    hint="have it refer to plain data only, or put it in a file and name it file.py:name",
                )
            # It stays in the process of the caller, which looks at it when the run begins.
            continue
        report(_importing(reward.function, limit_s))
        load = load_function if recipe.episode is None else load_judging
        functions.append(load(reward, objects))
    columns = dict.fromkeys(name for row in rows for name in row.columns)
    check_columns([Needs(function=each.label, columns=each.required) for each in functions], columns)

    if recipe.episode is not None:
        report(_importing(recipe.episode.function, limit_s))
        episode = recipe.episode
        load_episode(episode.function, episode.options, objects, sandbox=episode.sandbox)

    loss, advantage = recipe.algorithm.loss, recipe.algorithm.advantage
    if isinstance(loss, CustomLossConfig):
        report(_importing(loss.function, limit_s))
        needs_proximal = load_loss(loss, objects).needs_proximal
    else:
        needs_proximal = loss.needs_proximal
    if isinstance(advantage, CustomAdvantageConfig):
        report(_importing(advantage.function, limit_s))
        reason = load_advantage(advantage, objects).whole_batch_reason
    else:
        reason = advantage.whole_batch_reason
    if reason is None and needs_proximal and recipe.batch.updates > 1:
        reason = "the loss compares with the policy before the first of several updates"
    if recipe.control.stream and reason is not None:
        raise ConfigError(
            f"control.stream = true hands over groups that could not be trained on before the last has come: "
            f"{reason}",
            hint="set control.stream=false",
        )


def _importing(name: str, limit_s: float) -> Doing:
    place = import_place(name)
    return Doing(
        what=f"importing {place}",
        limit=("scoring.start_limit_s", limit_s),
        hint=f"`{import_command(place)}` shows what happens; "
        "what takes long or ends the process belongs into functions",
    )
