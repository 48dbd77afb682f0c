"""Where rows come from and what judges a trajectory, from where the recipe defines it. Torch-free."""

from dora_rl.core.recipe.data import DataConfig as DataConfig
from dora_rl.core.recipe.data import RewardConfig as RewardConfig
from dora_rl.core.recipe.data import ScoringConfig as ScoringConfig
from dora_rl.core.recipe.data import SourceConfig as SourceConfig
