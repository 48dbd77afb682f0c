"""Policy losses, one module each: `LossTokens` in, `LossTerms` out.

A literal table from the kind of configuration to its function; `loss_of` binds the two.
"""

from collections.abc import Callable
from functools import partial

from dora_rl.algorithms.config import (
    AnyLossConfig,
    CispoConfig,
    DecoupledPpoConfig,
    GspoConfig,
    Kimi15Config,
    LossConfig,
    PolicyGradientConfig,
    PpoConfig,
    TisConfig,
    ToprConfig,
)
from dora_rl.algorithms.losses.cispo import cispo
from dora_rl.algorithms.losses.decoupled_ppo import decoupled_ppo
from dora_rl.algorithms.losses.gspo import gspo
from dora_rl.algorithms.losses.kimi15 import kimi15
from dora_rl.algorithms.losses.policy_gradient import policy_gradient
from dora_rl.algorithms.losses.ppo import ppo
from dora_rl.algorithms.losses.tis import tis
from dora_rl.algorithms.losses.topr import topr
from dora_rl.algorithms.tokens import Loss, LossTerms

LOSSES: dict[type[LossConfig], Callable[..., LossTerms]] = {
    PolicyGradientConfig: policy_gradient,
    PpoConfig: ppo,
    GspoConfig: gspo,
    CispoConfig: cispo,
    TisConfig: tis,
    ToprConfig: topr,
    DecoupledPpoConfig: decoupled_ppo,
    Kimi15Config: kimi15,
}


def loss_of(config: AnyLossConfig) -> Loss:
    """The loss that `config` describes."""
    return partial(LOSSES[type(config)], config=config)
