"""Around a plan: the same with one choice made otherwise, to show how much it matters."""

from collections.abc import Iterator

from msgspec.structs import replace

from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.costs.gpu_memory import fewest_training_gpus
from dora_rl.costs.rollout import instance_sizes
from dora_rl.sim.plan.choice import Choice, trial_of
from dora_rl.sim.plan.search import decide

_SYNC_STEPS = 4


class Neighbour(Record, frozen=True, gc=True):
    """A plan with one choice changed: which, to what value, and the recipe that tries it."""

    what: str
    value: str
    trial: Recipe


def neighbours(planned: Recipe, choice: Choice, found_groups: int) -> Iterator[Neighbour]:
    """The plans one step to either side of every choice; R around the controller's `found_groups`."""
    if not choice.takes_turns:
        yield from _other_splits(planned, choice)
        yield from _other_sizes(planned, choice)
    for bound in (choice.max_staleness - 1, choice.max_staleness + 1):
        if bound >= 1:
            yield _tried(planned, "S", str(bound), replace(choice, max_staleness=bound))
    yield from _other_targets(planned, choice, found_groups)
    yield Neighbour(what="schedule", value="sync, all GPUs in turn", trial=_synchronous(planned))


def _tried(recipe: Recipe, what: str, value: str, choice: Choice) -> Neighbour:
    return Neighbour(what=what, value=value, trial=trial_of(recipe, choice))


def _other_splits(planned: Recipe, choice: Choice) -> Iterator[Neighbour]:
    size, gpus = choice.tensor_parallel, choice.rollout_gpus
    step = size * max(1, gpus // (8 * size))
    for other in (gpus - step, gpus + step):
        if size <= other <= _most_rollout_gpus(planned):
            yield _tried(planned, "rollout GPUs", str(other), replace(choice, rollout_gpus=other))


def _other_sizes(planned: Recipe, choice: Choice) -> Iterator[Neighbour]:
    size = choice.tensor_parallel
    undecided = replace(planned, cluster=replace(planned.cluster, tensor_parallel=None, rollout_gpus=None))
    for other in instance_sizes(undecided):
        gpus = max(1, choice.rollout_gpus // other) * other
        if other in (size // 2, size * 2) and gpus <= _most_rollout_gpus(planned):
            changed = replace(choice, tensor_parallel=other, rollout_gpus=gpus)
            yield _tried(undecided, "tensor parallel", str(other), changed)


def _other_targets(planned: Recipe, choice: Choice, found_groups: int) -> Iterator[Neighbour]:
    batch = planned.batch.groups
    for groups in (int(0.75 * found_groups), int(1.5 * found_groups)):
        if batch <= groups <= (choice.max_staleness + 1) * batch:
            yield _tried(planned, "R", f"{groups / batch:.2f} B", replace(choice, active_groups=groups))


def _synchronous(planned: Recipe) -> Recipe:
    cluster = replace(planned.cluster, rollout_gpus=None, elastic_gpus=0)
    control = replace(planned.control, schedule="sync", active_groups=None)
    simulation = replace(planned.simulation, warmup_steps=1)
    run = replace(planned, cluster=cluster, control=control, simulation=simulation, steps=_SYNC_STEPS)
    return decide(run)


def _most_rollout_gpus(recipe: Recipe) -> int:
    return recipe.cluster.gpus - fewest_training_gpus(recipe)
