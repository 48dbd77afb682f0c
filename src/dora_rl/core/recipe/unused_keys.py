"""Keys that were set and that nothing reads under the recipe's other choices: each is refused or said.

Refused is what contradicts the schedule; said is what another key has switched off, and what only simulator
and planner read. A key that has its default counts as not set: a recipe that was written out in full says
nothing by it. Owns no default and no meaning of a key.
"""

from collections.abc import Iterator
from math import ceil

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.algorithm import AdvantageConfig, GaeConfig
from dora_rl.core.recipe.control import Control
from dora_rl.core.recipe.loss_configs import DecoupledPpoConfig
from dora_rl.core.recipe.tree import Recipe

ONLY_SIMULATED = {
    "cluster.gpu": "devices.kind",
    "cluster.gpus": "devices.instances and devices.trainer_ranks",
    "cluster.gpus_per_node": None,
    "cluster.rollout_gpus": "devices.instances",
    "cluster.elastic_gpus": "devices.elastic",
    "cluster.tensor_parallel": None,
    "task.rows": "data",
    "task.prompt_tokens": "data",
    "task.score_s": None,
    "task.zero_variance_rate": None,
}
"""Keys that only simulator and planner read, and the keys that say the like to a live run. Beside them stands
`simulation`, which says so by its name, and `task.turns`, which training refuses."""


def check_schedule(recipe: Recipe) -> None:
    """Raise a ConfigError where the schedule has no use for a key that was set."""
    control, batch = recipe.control, recipe.batch
    for key, value, what, schedules in (
        ("redundant_groups", control.redundant_groups, "group", ("async_ratio", "sync")),
        ("redundant_members", control.redundant_members, "member", ("async_ratio",)),
    ):
        if value and control.schedule not in schedules:
            raise ConfigError(
                f"control.{key} = {value} goes with control.schedule = {' or '.join(schedules)} "
                f"alone: {control.schedule} aborts no {what}",
                hint=f"set control.{key}=0, or control.schedule={schedules[0]}",
            )
    streams = recipe.data is not None and recipe.data.train.stream
    if control.redundant_groups and control.schedule == "sync" and (streams or recipe.episode is not None):
        kept = "data.train.stream" if streams else "episode"
        raise ConfigError(
            f"control.redundant_groups = {control.redundant_groups} puts prompts off under "
            f"control.schedule = sync, which cannot be done with {kept}: no row that has begun is kept",
            hint=f"set control.redundant_groups=0, or leave {kept} out",
        )
    if control.redundant_members > batch.group_size - control.min_members:
        raise ConfigError(
            f"control.redundant_members = {control.redundant_members} leaves fewer than "
            f"control.min_members = {control.min_members} of batch.group_size = {batch.group_size}",
            hint=f"set control.redundant_members to at most {batch.group_size - control.min_members}",
        )
    if control.filter_zero_variance and 0 < control.redundant_members >= batch.group_size - 1:
        raise ConfigError(
            f"control.redundant_members = {control.redundant_members} leaves one of batch.group_size = "
            f"{batch.group_size}, and control.filter_zero_variance would replace every group of one",
            hint=f"set control.redundant_members={max(0, batch.group_size - 2)}, "
            "or control.filter_zero_variance=false",
        )
    if control.active_groups is not None and control.fixes_target:
        raise ConfigError(
            f"control.active_groups = {control.active_groups} is not for control.schedule = "
            f"{control.schedule}, which fixes R itself",
            hint="set control.active_groups=null, or one of dora, dora_onset, partial, counted",
        )
    if not control.prompt_replication and batch.group_size > recipe.cluster.slots:
        raise ConfigError(
            f"control.prompt_replication = false starts the batch.group_size = {batch.group_size} members of "
            f"a group on one instance, which has cluster.slots = {recipe.cluster.slots}",
            hint=f"set cluster.slots={batch.group_size} or more, or control.prompt_replication=true",
        )
    _check_ratio(control)


def _check_ratio(control: Control) -> None:
    """Raise a ConfigError where keys of `async_ratio` go with another schedule or bound."""
    alpha = control.async_ratio
    for key, value in (("async_ratio", alpha), ("suspend", control.suspend or None)):
        if value is not None and control.schedule != "async_ratio":
            raise ConfigError(
                f"control.{key} goes with control.schedule = async_ratio alone, not {control.schedule}",
                hint=f"leave control.{key} out, or set control.schedule=async_ratio",
            )
    if alpha is not None and ceil(alpha) != control.max_staleness:
        raise ConfigError(
            f"control.async_ratio = {alpha} starts groups up to {ceil(alpha)} versions before they are "
            f"trained on, and control.max_staleness is {control.max_staleness}",
            hint=f"set control.max_staleness={ceil(alpha)}",
        )


def training_remarks(recipe: Recipe) -> Iterator[str]:
    """Sentences about what a run of this recipe will not do, though keys of it seem to ask for it."""
    simulated = [key for key in ONLY_SIMULATED if _is_set(recipe, key)]
    if simulated:
        yield _only_simulated(simulated)
    yield from simulation_remarks(recipe)
    yield from _switched_off(recipe, _training_switches(recipe))
    yield from _without_effect(recipe)


def _without_effect(recipe: Recipe) -> Iterator[str]:
    """Sentences about keys that are read and still do not have the effect that their names promise."""
    if isinstance(recipe.algorithm.loss, DecoupledPpoConfig) and recipe.batch.updates == 1:
        yield (
            "with batch.updates = 1 the ratio that decoupled_ppo clips is exactly 1: algorithm.loss.clip_low "
            "and clip_high have no effect, only weight_high has; batch.updates=2 or more makes them count"
        )
    kept, needed = recipe.trainer.kept_versions, recipe.control.staleness_bound + 1
    if recipe.algorithm.correction is not None and 0 < kept < needed:
        yield (
            f"trainer.kept_versions = {kept} leaves trajectories of staleness {kept} and more without the "
            f"correction: {needed} would cover all, and are kept where it is left out"
        )
    if recipe.sampling.is_cut:
        yield (
            "sampling is cut by top_k, top_p or min_p, and importance ratios are over all words, so they are "
            "off; draw with sampling.temperature alone"
        )


def simulation_remarks(recipe: Recipe) -> Iterator[str]:
    """Sentences about keys of `control` that were set and decide nothing under this schedule."""
    control = recipe.control
    fixed = f"control.schedule = {control.schedule} has a bound of {control.staleness_bound}"
    if control.staleness_bound != control.max_staleness and _is_set(recipe, "control.max_staleness"):
        yield f"control.max_staleness = {control.max_staleness} is not used: {fixed}"
    yield from _switched_off(
        recipe,
        [
            (control.staleness_bound == 0, fixed, ("control.adapt_staleness", "control.refill")),
            (
                control.fixes_versions and control.staleness_bound > 0,
                f"control.schedule = {control.schedule} fixes the version of every group",
                ("control.adapt_staleness", "control.refill"),
            ),
            (not control.rebalance, "control.rebalance = false", ("control.rebalance_period_s",)),
            (
                control.schedule != "dora",
                f"control.schedule = {control.schedule} does not wait for fresher versions",
                ("control.freshness_cost",),
            ),
        ],
    )


Switch = tuple[bool, str, tuple[str, ...]]
"""Whether something is off, what makes it so, and the keys that then decide nothing."""


def _training_switches(recipe: Recipe) -> Iterator[Switch]:
    evaluation = tuple(
        f"evaluation.{key}"
        for key in ("max_rows", "samples", "greedy", "at_temperature", "pass_function", "pass_reward")
    )
    yield recipe.evaluation.every == 0, "evaluation.every = 0", (*evaluation, "control.evaluation_share")
    yield recipe.cluster.ray is None, "cluster.ray is left out", ("cluster.host",)
    yield (
        recipe.warm_start.steps == 0,
        "warm_start.steps = 0",
        tuple(f"warm_start.{key}" for key in ("update_rows", "rate", "beta2")),
    )
    yield (
        recipe.sampling.is_greedy,
        "sampling.temperature = 0",
        tuple(f"sampling.{key}" for key in ("top_k", "top_p", "min_p")),
    )
    schedule = recipe.optimizer.learning_rate_schedule
    yield (
        schedule.kind == "constant",
        "optimizer.learning_rate_schedule.kind = constant",
        tuple(f"optimizer.learning_rate_schedule.{key}" for key in ("total_updates", "floor")),
    )
    yield from _algorithm_switches(recipe)
    if recipe.data is not None:
        data = recipe.data
        yield not data.held_out_share, "data.held_out_share = 0", ("data.seed",)
        unlimited = data.max_prompt_tokens is None and not data.train.stream
        yield unlimited, "data.max_prompt_tokens is left out", ("data.overlong_prompts",)


def _algorithm_switches(recipe: Recipe) -> Iterator[Switch]:
    algorithm, advantage = recipe.algorithm, recipe.algorithm.advantage
    yield (
        not algorithm.overlong.penalty,
        "algorithm.overlong.penalty = 0",
        ("algorithm.overlong.buffer_share",),
    )
    yield recipe.episode is None, "there is no section episode", ("algorithm.credit", "roles")
    epsilon = ("algorithm.advantage.epsilon",)
    if isinstance(advantage, AdvantageConfig):
        yield advantage.scale == "none", "algorithm.advantage.scale = none", epsilon
    if isinstance(advantage, GaeConfig):
        yield not advantage.normalise, "algorithm.advantage.normalise = false", epsilon
    yield not advantage.needs_critic, "algorithm.advantage.kind is not gae", ("trainer.critic",)
    yield recipe.batch.updates == 1, "batch.updates = 1", ("trainer.critic.value_clip",)


def _switched_off(recipe: Recipe, switches: Iterator[Switch] | list[Switch]) -> Iterator[str]:
    for is_off, why, keys in switches:
        idle = [key for key in keys if is_off and _is_set(recipe, key)]
        if idle:
            yield f"{', '.join(idle)} {'is' if len(idle) == 1 else 'are'} set and not used: {why}"


def _only_simulated(keys: list[str]) -> str:
    instead = dict.fromkeys(words for key in keys if (words := ONLY_SIMULATED[key]))
    where = f"; what a run has is set by {', '.join(instead)}" if instead else ""
    verb = "is" if len(keys) == 1 else "are"
    return f"{', '.join(keys)} {verb} for `dora simulate` and `dora plan`, and not used by training{where}"


def _is_set(recipe: Recipe, path: str) -> bool:
    """Whether a key's value is not its default; false where its section is left out."""
    *above, key = path.split(".")
    section: Struct | None = recipe
    for name in above:
        section = getattr(section, name, None)
    if section is None:
        return False
    field = next(field for field in fields(section) if field.name == key)
    default = field.default if field.default_factory is NODEFAULT else field.default_factory()
    return bool(getattr(section, key) != default)
