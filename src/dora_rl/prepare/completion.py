"""A recipe completed: whatever was left out to whoever prepares the run is said.

So the run has one record to read, and its logs begin with what really ran. What other sections and the
simulator need to know of the rows is filled in as well.
"""

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Evaluation, ImaginedTask, Lognormal, Recipe
from dora_rl.core.recipe.trainer_config import CriticConfig, TrainerSettings
from dora_rl.prepare.run_inputs import Inputs
from dora_rl.run.run_setup import DeviceLayout


def completed(recipe: Recipe, inputs: Inputs) -> Recipe:
    """The recipe, with what the rows and the algorithm say filled in where it was silent."""
    return replace(
        recipe,
        rewards=inputs.rewards,
        response=replace(recipe.response, max_new_tokens=inputs.max_new_tokens),
        trainer=_trainer(recipe),
        evaluation=_evaluation(recipe, inputs),
        task=_task(recipe, inputs),
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


def _trainer(recipe: Recipe) -> TrainerSettings:
    """The trainer's section, with what the algorithm needs and nobody set."""
    trainer, algorithm = recipe.trainer, recipe.algorithm
    if algorithm.correction is not None and not trainer.kept_versions:
        trainer = replace(trainer, kept_versions=recipe.control.max_staleness + 1)
    if algorithm.advantage.needs_critic and trainer.critic is None:
        trainer = replace(trainer, critic=CriticConfig())
    return trainer


def _evaluation(recipe: Recipe, inputs: Inputs) -> Evaluation:
    asked = recipe.evaluation
    if not asked.every:
        return asked
    if not inputs.prompts.held_out:
        is_shared = recipe.data is not None and bool(recipe.data.held_out_share)
        more = "give more than one row" if is_shared else "set data.held_out_share=0.1"
        raise ConfigError(
            f"evaluation.every = {asked.every}, but no rows are held out",
            hint=f"{more}, name data.held_out, or set evaluation.every=0",
        )
    num_held_out = len(inputs.prompts.held_out)
    return replace(asked, max_rows=min(asked.max_rows or num_held_out, num_held_out))


def _task(recipe: Recipe, inputs: Inputs) -> ImaginedTask:
    """The rows as the simulator is told of them; how long responses usually are is the recipe's to say."""
    lengths = recipe.task.lengths
    if isinstance(lengths, Lognormal):
        lengths = replace(lengths, min_tokens=1, max_tokens=inputs.max_new_tokens)
    return replace(
        recipe.task, rows=len(inputs.prompts.train), prompt_tokens=inputs.mean_prompt_tokens, lengths=lengths
    )
