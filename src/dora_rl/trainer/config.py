"""How training is set up, from where the recipe defines it. Torch-free."""

from dora_rl.core.recipe.optimizer import OptimizerConfig as OptimizerConfig
from dora_rl.core.recipe.optimizer import ScheduleConfig as ScheduleConfig
from dora_rl.core.recipe.trainer import LORA_TARGETS as LORA_TARGETS
from dora_rl.core.recipe.trainer import CriticConfig as CriticConfig
from dora_rl.core.recipe.trainer import GapConfig as GapConfig
from dora_rl.core.recipe.trainer import LoraConfig as LoraConfig
from dora_rl.core.recipe.trainer import TrainerConfig as TrainerConfig
