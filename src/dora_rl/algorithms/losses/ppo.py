"""The clipped surrogate, with its two bounds set apart and an optional third against runaway ratios."""

from torch import Tensor

from dora_rl.algorithms.config import PpoConfig
from dora_rl.algorithms.ratios import ratio
from dora_rl.algorithms.tokens import LossTerms, LossTokens


def ppo(tokens: LossTokens, config: PpoConfig) -> LossTerms:
    """`-min(r * A, clip(r, 1 - low, 1 + high) * A)` with `r = pi / pi_behaviour`.

    Schulman et al. 2017 (1707.06347); bounds apart: DAPO (2503.14476). With a dual clip `c`, where A < 0 the
    surrogate does not fall below `c * A`: Ye et al. 2020 (1912.09729).
    """
    ratio_T = ratio(tokens.logprobs_T, tokens.behaviour_logprobs_T)
    return clipped_surrogate(
        ratio_T, tokens.advantages_T, config.clip_low, config.clip_high, dual_clip=config.dual_clip
    )


def clipped_surrogate(
    ratio_T: Tensor,
    advantages_T: Tensor,
    clip_low: float,
    clip_high: float,
    *,
    dual_clip: float | None = None,
) -> LossTerms:
    """The formula above, of any ratio. Where a bound holds the ratio, the token has no gradient."""
    low, high = 1 - clip_low, 1 + clip_high
    is_clipped_low_T = (advantages_T < 0) & (ratio_T < low)
    is_clipped_high_T = (advantages_T > 0) & (ratio_T > high)
    held_T = ratio_T.masked_fill(is_clipped_low_T, low).masked_fill(is_clipped_high_T, high)
    if dual_clip is not None:
        is_runaway_T = (advantages_T < 0) & (ratio_T > dual_clip)
        held_T = held_T.masked_fill(is_runaway_T, dual_clip)
        is_clipped_high_T = is_clipped_high_T | is_runaway_T
    return LossTerms(
        loss_T=-held_T * advantages_T,
        ratio_T=ratio_T.detach(),
        is_clipped_low_T=is_clipped_low_T,
        is_clipped_high_T=is_clipped_high_T,
    )
