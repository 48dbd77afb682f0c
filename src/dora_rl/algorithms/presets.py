"""Algorithms that have a name, from where the recipe defines them. Torch-free."""

from dora_rl.core.recipe.presets import PRESETS as PRESETS
from dora_rl.core.recipe.presets import preset as preset
