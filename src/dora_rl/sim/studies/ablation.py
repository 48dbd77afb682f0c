"""Study `ablation`: every part of the algorithm switched off, one at a time.

Each variant runs on two divisions of the devices: the preset's, where the trainer is the bottleneck and
little can show, and one with a third fewer generating GPUs, where generation is. A part that costs nothing
in the first and gains in the second is worth having.
"""

from collections.abc import Sequence

from dora_rl.core.loading import build, override, to_dict
from dora_rl.core.recipe import Recipe
from dora_rl.core.record import Record
from dora_rl.sim.run import Result
from dora_rl.sim.setup import complete, resolve


class Variant(Record, frozen=True):
    """One change: which part of the algorithm, and what is done to it."""

    part: str
    change: str
    assignments: tuple[str, ...] = ()


class Row(Record, frozen=True):
    variant: Variant
    plenty: Result
    """On the preset's division of the devices."""
    scarce: Result
    """With a third fewer generating GPUs."""


def variants(recipe: Recipe) -> list[Variant]:
    """The whole algorithm first, then one change each."""
    double = f"active_groups={2 * recipe.batch.groups}"
    tensor_parallel = recipe.cluster.tensor_parallel or 1
    changes: list[tuple[str, str, tuple[str, ...]]] = [
        ("everything", "as it is", ()),
        ("KV reuse", "moved requests are prefilled again", ("kv_reuse=false",)),
        ("rebalancing", "off", ("rebalance=false",)),
        ("continuous admission", "only at step onset, R = 2 B", ("control.schedule=dora_onset", double)),
        ("refill", "off", ("control.refill=false",)),
        ("placement", "exclusive", ("placement=exclusive",)),
        ("placement", "shared", ("placement=shared",)),
        ("controller of R", "R fixed at 2 B", (double,)),
        ("estimates", "the truth", ("estimates=oracle",)),
        ("estimates", "half of what is true", ("estimates=half",)),
        ("estimates", "twice what is true", ("estimates=double",)),
        ("slots", "half as many", (f"slots={recipe.cluster.slots // 2}",)),
        ("whole batches", "finished groups are streamed", ("stream=true",)),
        ("fixed devices", "two training instances elastic", (f"elastic_gpus={2 * tensor_parallel}",)),
    ]  # fmt: skip
    return [Variant(part=part, change=change, assignments=how) for part, change, how in changes]


def recipes(preset: str, *, steps: int, seed: int) -> list[Recipe]:
    """For each variant the run with plenty of generating GPUs, then the one with a third fewer."""
    asked = ["control.schedule=dora", f"steps={steps}", f"seed={seed}"]
    plenty = complete(resolve(preset=preset, assignments=asked))
    scarce = _changed(plenty, [f"rollout_gpus={_scarce(plenty)}"])
    return [_changed(base, v.assignments) for v in variants(plenty) for base in (plenty, scarce)]


def rows(recipes: Sequence[Recipe], results: Sequence[Result]) -> list[Row]:
    return [
        Row(variant=variant, plenty=plenty, scarce=scarce)
        for variant, plenty, scarce in zip(variants(recipes[0]), results[::2], results[1::2], strict=True)
    ]


def _scarce(recipe: Recipe) -> int:
    c = recipe.cluster
    rollout_gpus, tensor_parallel = c.rollout_gpus or 0, c.tensor_parallel or 1
    return max(1, 2 * rollout_gpus // (3 * tensor_parallel)) * tensor_parallel


def _changed(recipe: Recipe, assignments: Sequence[str]) -> Recipe:
    return build(Recipe, override(to_dict(recipe), assignments, Recipe), "ablation")
