"""A recipe completed: whatever was left out to whoever prepares the run is said.

So the run has one record to read, and its logs begin with what really ran. What other sections and the
simulator need to know of the rows is filled in as well.
"""

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import did_you_mean
from dora_rl.core.recipe import Evaluation, Lognormal, Recipe, Turns
from dora_rl.core.recipe.algorithm import AdvantageConfig
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.core.recipe.trainer_config import CriticConfig
from dora_rl.envs.tasks.task import Task
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.run_setup import DeviceLayout

_LEAST_ROOM = 64
"""Tokens that prompts of a stream may have at least, where nobody said how long they may be."""


def judged_recipe(recipe: Recipe, task: Task | None, source: str) -> Recipe:
    """The recipe with what judges its rows: reward functions, or episodes; of a task its own."""
    asked = recipe.episode
    if task is not None and task.episode is not None and (asked is None or not asked.function):
        recipe = replace(recipe, episode=_changed(task.episode, asked or EpisodeSettings()))
    if recipe.episode is not None:
        if not recipe.episode.function:
            raise ConfigError(
                f"the rows of '{source}' have no episode of their own, and the recipe names none",
                hint="set episode.function=file.py:play, or leave the section episode out",
            )
        # It gives its reward itself; functions that are named beside it judge what it was.
        return recipe
    rewards = recipe.rewards or (task.rewards if task is not None else ())
    if not rewards:
        raise ConfigError(
            f"nothing judges the rows of '{source}'",
            hint="name a reward function: rewards: [file.py:my_reward]; in Python, rewards=[my_reward]",
        )
    return replace(recipe, rewards=rewards)


def _changed(own: EpisodeSettings, asked: EpisodeSettings) -> EpisodeSettings:
    """A task's episode with what a recipe says otherwise."""
    usual = EpisodeSettings()
    said = {key: getattr(asked, key) for key in asked.__struct_fields__}
    others = {key: value for key, value in said.items() if value != getattr(usual, key)}
    return replace(own, **others | {"options": own.options | asked.options})


def completed(recipe: Recipe, task: Task | None, prompts: PromptTable, max_positions: int) -> Recipe:
    """The recipe, with what task, rows and algorithm say filled in where it was silent.

    `max_positions` is the most tokens that the model can take.
    """
    _check_comparison(recipe)
    if recipe.task.turns != Turns():
        raise ConfigError(
            "task.turns is what `dora simulate` and `dora plan` imagine; a row is trained on in one turn",
            hint="leave task.turns out to train: --set 'task.turns={}'",
        )
    max_new_tokens = recipe.response.max_new_tokens or (task.max_new_tokens if task is not None else None)
    if max_new_tokens is None:
        raise ConfigError(
            "the recipe does not say how long a response may be", hint="set response.max_new_tokens=256, say"
        )

    trainer, algorithm = recipe.trainer, recipe.algorithm
    if algorithm.correction is not None and not trainer.kept_versions:
        trainer = replace(trainer, kept_versions=recipe.control.staleness_bound + 1)
    if algorithm.advantage.needs_critic and trainer.critic is None:
        trainer = replace(trainer, critic=CriticConfig())
    aggregation = algorithm.aggregation
    if aggregation.over == "constant" and aggregation.length is None:
        algorithm = replace(algorithm, aggregation=replace(aggregation, length=max_new_tokens))

    # The rows as the simulator is told of them; how long responses usually are is the recipe's to say.
    lengths = [len(prompt.token_ids) for prompt in (*prompts.train, *prompts.held_out)]
    data = recipe.data
    assert data is not None, "a run without rows is refused"
    num_rows = len(prompts.train)
    if data.train.stream:
        num_rows = recipe.steps * recipe.batch.groups
        if data.max_prompt_tokens is None:
            room = max(max(lengths), max_positions - max_new_tokens)
            data = replace(data, max_prompt_tokens=min(max(_LEAST_ROOM, 2 * max(lengths)), room))
    imagined = replace(recipe.task, rows=num_rows, prompt_tokens=max(1, round(sum(lengths) / len(lengths))))
    if isinstance(imagined.lengths, Lognormal):
        usual = replace(imagined.lengths, min_tokens=1, max_tokens=max_new_tokens)
        imagined = replace(imagined, lengths=usual)
    return replace(
        recipe,
        data=data,
        response=replace(recipe.response, max_new_tokens=max_new_tokens),
        algorithm=algorithm,
        trainer=trainer,
        evaluation=_evaluation(recipe, len(prompts.held_out)),
        task=imagined,
    )


def placed(recipe: Recipe, devices: DeviceLayout) -> Recipe:
    """The completed recipe with its devices as a cluster, so that the run can be simulated as it was."""
    cluster = replace(
        recipe.cluster,
        gpus=devices.instances + devices.trainer_ranks,
        rollout_gpus=devices.instances,
        elastic_gpus=0,
        tensor_parallel=1,
    )
    return replace(recipe, cluster=cluster)


def _check_comparison(recipe: Recipe) -> None:
    """Refuse groups whose members are one or all the same where advantages compare them."""
    advantage = recipe.algorithm.advantage
    compares = isinstance(advantage, AdvantageConfig) and advantage.baseline in ("group", "leave_one_out")
    if compares and recipe.batch.group_size == 1:
        raise ConfigError(
            "batch.group_size = 1 with an advantage that compares the members of a group: every advantage "
            "would be 0, and nothing learned",
            hint="set batch.group_size=8, say, or an algorithm that compares within the batch: "
            "algorithm=reinforce++",
        )
    if compares and recipe.sampling.is_greedy:
        raise ConfigError(
            "sampling.temperature = 0 gives every member of a group the same response: every advantage would "
            "be 0, and nothing learned",
            hint="set sampling.temperature=1; evaluation is greedy by itself where evaluation.samples is 1",
        )


def _evaluation(recipe: Recipe, num_held_out: int) -> Evaluation:
    asked = recipe.evaluation
    if asked.every is None:
        data = recipe.data
        is_wanted = data is not None and (data.held_out is not None or bool(data.held_out_share))
        asked = replace(asked, every=recipe.steps if is_wanted and num_held_out else 0)
    if not asked.every:
        return asked
    labels = [reward.label for reward in recipe.rewards]
    if asked.pass_function is not None and asked.pass_function not in labels:
        raise ConfigError(
            f"evaluation.pass_function is '{asked.pass_function}', and there is no such reward",
            hint=did_you_mean(asked.pass_function, labels, "the rewards are"),
        )
    if not num_held_out:
        is_shared = recipe.data is not None and bool(recipe.data.held_out_share)
        more = "give more than one row" if is_shared else "set data.held_out_share=0.1"
        raise ConfigError(
            f"evaluation.every = {asked.every}, but no rows are held out",
            hint=f"{more}, name data.held_out, or set evaluation.every=0",
        )
    return replace(asked, max_rows=min(asked.max_rows or num_held_out, num_held_out))
