"""What would make a run fit into memory: changes of its recipe, each tried before it is named.

Knows which keys save memory, not how much: that is counted by whoever plans the run. Torch-free.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.generation import EngineSettings
from dora_rl.core.recipe.trainer_config import LoraConfig
from dora_rl.core.record import Record

LEAST_PASS_TOKENS = 1024
"""Tokens of a pass below which training would take much longer: then something else has to give."""
_FEW_SLOTS = 16
_MOST_NAMED = 4

Needed = Callable[[Recipe], str | None]
"""Counts the memory of a recipe: `3.1 of 21.2 GiB` where it fits, None where it does not."""


class MemorySaving(Record, frozen=True):
    """One key of a recipe with a value that takes less memory."""

    section: str
    key: str
    value: Any
    shown: str | None = None
    """What a user sets, where that is not the key itself."""

    def __str__(self) -> str:
        if self.shown is not None:
            return f"{self.section}.{self.shown}"
        value = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return f"{self.section}.{self.key}={value}"

    def applied_to(self, recipe: Recipe) -> Recipe:
        """The recipe with this one change."""
        section = replace(getattr(recipe, self.section), **{self.key: self.value})
        return replace(recipe, **{self.section: section})


def how_to_fit(recipe: Recipe, needed: Needed, *, num_gpus: int = 0) -> str:
    """The hint for a recipe that does not fit: changes that were tried and make it fit, with the figures.

    Where no single change does, several together are tried; then only another model or machine is left.
    """
    found = []
    offered = list(_offered(recipe, num_gpus))
    for alternatives in offered:
        # Of one key the smallest change is enough.
        tried = ((change, needed(change.applied_to(recipe))) for change in alternatives)
        found += [f"{change} ({figures})" for change, figures in tried if figures][:1]
    if found:
        return f"it fits with {' or with '.join(found[:_MOST_NAMED])}"
    strongest = [alternatives[-1] for alternatives in offered if alternatives]
    for count in range(2, len(strongest) + 1):
        if needed(_with_all(recipe, strongest[:count])):
            enough = _without_idle(recipe, strongest[:count], needed)
            return f"it fits with {' and '.join(map(str, enough))} ({needed(_with_all(recipe, enough))})"
    tried_all = f": even with {', '.join(map(str, strongest))} it does not fit" if strongest else ""
    return f"use a smaller model, or a machine with more memory{tried_all}"


def _with_all(recipe: Recipe, changes: Sequence[MemorySaving]) -> Recipe:
    for change in changes:
        recipe = change.applied_to(recipe)
    return recipe


def _without_idle(recipe: Recipe, changes: Sequence[MemorySaving], needed: Needed) -> list[MemorySaving]:
    """Those of the changes that it takes: each is left out where it fits without."""
    enough = list(changes)
    for change in changes:
        others = [each for each in enough if each is not change]
        if needed(_with_all(recipe, others)):
            enough = others
    return enough


def _offered(recipe: Recipe, num_gpus: int) -> Iterator[list[MemorySaving]]:
    """Changes that save memory, by key, the smallest first; keys that alter least of what is learnt first."""
    trainer, devices, response = recipe.trainer, recipe.devices, recipe.response.max_new_tokens
    # Left out, passes are as small as they must be.
    yield _halved("trainer", "micro_batch_tokens", trainer.micro_batch_tokens, least=LEAST_PASS_TOKENS)
    if recipe.engine.step_tokens > (usual := EngineSettings().step_tokens):
        yield [MemorySaving(section="engine", key="step_tokens", value=usual)]
    yield _halved("cluster", "slots", recipe.cluster.slots, least=_FEW_SLOTS)
    instances = range((devices.instances or 1) - 1, 0, -1)
    yield [MemorySaving(section="devices", key="instances", value=value) for value in instances]
    # Left out, every number of ranks was tried.
    ranks = range((devices.trainer_ranks or num_gpus) + 1, num_gpus + 1)
    yield [MemorySaving(section="devices", key="trainer_ranks", value=value) for value in ranks]
    if not trainer.gradient_checkpointing:
        yield [MemorySaving(section="trainer", key="gradient_checkpointing", value=True)]
    if trainer.serving_dtype == "float32":
        yield [MemorySaving(section="trainer", key="serving_dtype", value="bfloat16")]
    bounds = range(recipe.control.max_staleness - 1, 0, -1)
    yield [MemorySaving(section="control", key="max_staleness", value=value) for value in bounds]
    if trainer.lora is None:
        yield [MemorySaving(section="trainer", key="lora", value=LoraConfig(rank=16), shown="lora.rank=16")]
    if devices.memory_gib is not None:
        yield [MemorySaving(section="devices", key="memory_gib", value=None)]
    yield _halved("response", "max_new_tokens", response, least=max(1, (response or 0) // 2))


def _halved(section: str, key: str, asked: int | None, *, least: int) -> list[MemorySaving]:
    """One key with half its value, a quarter of it and so on, down to the least that makes sense."""
    changes, value = [], (asked or 0) // 2
    while value >= least:
        changes.append(MemorySaving(section=section, key=key, value=value))
        value //= 2
    return changes
