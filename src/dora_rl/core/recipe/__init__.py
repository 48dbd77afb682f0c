"""The recipe: one typed tree for `dora simulate`, `dora plan` and `dora train`.

Frozen, validated at birth, derived values are properties. A field's docstring is its only documentation and
the command line's help. Torch-free.

tree            the whole, and what its parts must agree on   section     what every part is made of
control         batch, orchestration, split of the devices    data        rows, prompts, what judges
generation      sampling, responses, engines                  algorithm   advantage, the rest of the update
loss_configs    the policy losses                             presets     the algorithms that have a name
trainer_config  how training is set up, optimizer             live        devices, evaluation, patience
simulation      what the simulator imagines, costs, faults    episodes    several turns with an environment
resolution      files, names, overrides to a Recipe
"""

from dora_rl.core.recipe.control import Batch, Cluster, Control, ScheduleName
from dora_rl.core.recipe.live import Checkpoints, Devices, Evaluation, Patience, RunSettings
from dora_rl.core.recipe.section import Count, Positive, PositiveFloat, Seconds, Section, Share
from dora_rl.core.recipe.simulation import (
    Costs,
    Empirical,
    Faults,
    ImaginedTask,
    Lognormal,
    Simulation,
    Turns,
)
from dora_rl.core.recipe.tree import Recipe

__all__ = [
    "Batch",
    "Checkpoints",
    "Cluster",
    "Control",
    "Costs",
    "Count",
    "Devices",
    "Empirical",
    "Evaluation",
    "Faults",
    "ImaginedTask",
    "Lognormal",
    "Patience",
    "Positive",
    "PositiveFloat",
    "Recipe",
    "RunSettings",
    "ScheduleName",
    "Seconds",
    "Section",
    "Share",
    "Simulation",
    "Turns",
]
