"""Devices and how they are split."""

from typing import Annotated

from msgspec import Meta

from dora_rl.core.recipe.section import Count, Positive, Section


class Cluster(Section, frozen=True):
    """Devices and how they are split."""

    gpu: str = "H800"
    gpus: Positive = 8
    gpus_per_node: Positive = 8
    rollout_gpus: Positive | None = None
    """GPUs that only generate; left out, the planner chooses."""
    elastic_gpus: Count = 0
    """GPUs that generate until a batch is ready and then train."""
    tensor_parallel: Positive | None = None
    """GPUs of one instance; left out, the planner chooses."""
    slots: Positive = 256
    """Most requests an instance decodes at once."""
    max_versions: Positive = 4
    """Most versions resident on one instance, memory permitting."""
    memory_share: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """Share of device memory for weights and KV."""
