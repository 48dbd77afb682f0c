"""The recipe: one typed tree for `dora simulate`, `dora plan` and `dora train`.

Frozen, validated at birth, derived values are properties. A field's docstring is its only documentation and
the command line's help. Torch-free.

tree       the whole, and what its parts must agree on     section     what every part is made of
control    batch and orchestration                         cluster     devices and how they are split
data       rows and prompts                                rewards     what judges, and where it runs
generation sampling, responses, engines                    algorithm   advantage, losses, presets: the update
optimizer  AdamW and its rate                              trainer     how training is set up
live       devices, evaluation, checkpoints, the run       task        what the simulator imagines of the data
simulation costs and faults of the simulator               resolving   files, names and overrides to a Recipe
"""

from dora_rl.core.recipe.cluster import Cluster
from dora_rl.core.recipe.control import Batch, Control, ScheduleName
from dora_rl.core.recipe.live import Checkpoints, Devices, Evaluation, RunSettings
from dora_rl.core.recipe.section import Count, Positive, PositiveFloat, Seconds, Section, Share
from dora_rl.core.recipe.simulation import Costs, Faults, Simulation
from dora_rl.core.recipe.task import Empirical, Lognormal, Task, Turns
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
    "Lognormal",
    "Positive",
    "PositiveFloat",
    "Recipe",
    "RunSettings",
    "ScheduleName",
    "Seconds",
    "Section",
    "Share",
    "Simulation",
    "Task",
    "Turns",
]
