"""Every choice of an algorithm, from where the recipe defines it. Torch-free."""

from dora_rl.core.recipe.advantage import AdvantageConfig as AdvantageConfig
from dora_rl.core.recipe.advantage import AnyAdvantageConfig as AnyAdvantageConfig
from dora_rl.core.recipe.advantage import GaeConfig as GaeConfig
from dora_rl.core.recipe.algorithm import AggregationConfig as AggregationConfig
from dora_rl.core.recipe.algorithm import AlgorithmConfig as AlgorithmConfig
from dora_rl.core.recipe.algorithm import CorrectionConfig as CorrectionConfig
from dora_rl.core.recipe.algorithm import KlConfig as KlConfig
from dora_rl.core.recipe.algorithm import OverlongConfig as OverlongConfig
from dora_rl.core.recipe.losses import AnyLossConfig as AnyLossConfig
from dora_rl.core.recipe.losses import CispoConfig as CispoConfig
from dora_rl.core.recipe.losses import DecoupledPpoConfig as DecoupledPpoConfig
from dora_rl.core.recipe.losses import GspoConfig as GspoConfig
from dora_rl.core.recipe.losses import Kimi15Config as Kimi15Config
from dora_rl.core.recipe.losses import LossConfig as LossConfig
from dora_rl.core.recipe.losses import PolicyGradientConfig as PolicyGradientConfig
from dora_rl.core.recipe.losses import PpoConfig as PpoConfig
from dora_rl.core.recipe.losses import TisConfig as TisConfig
from dora_rl.core.recipe.losses import ToprConfig as ToprConfig
