"""Policy losses, one module each: `LossTokens` in, `LossTerms` out.

A literal table from the kind of configuration to its function; `loss_of` binds the two.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from dora_rl.algorithms.config import LossConfig, PolicyGradientConfig, PpoConfig
from dora_rl.algorithms.losses.policy_gradient import policy_gradient
from dora_rl.algorithms.losses.ppo import ppo
from dora_rl.algorithms.tokens import Loss, LossTerms

LOSSES: dict[type[LossConfig], Callable[..., LossTerms]] = {
    PolicyGradientConfig: policy_gradient,
    PpoConfig: ppo,
}


def loss_of(config: Any) -> Loss:
    """The loss that `config` describes."""
    return partial(LOSSES[type(config)], config=config)
