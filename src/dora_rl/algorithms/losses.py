"""Policy losses, one function each: `LossTokens` in, `LossTerms` out.

A literal table goes from the kind of configuration to its function; `loss_of` binds the two.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from dora_rl.algorithms.custom import load_loss
from dora_rl.algorithms.tokens import (
    Loss,
    LossTerms,
    LossTokens,
    bounded_exp,
    lengths_N,
    means_T,
    nowhere,
    ratio,
    sums_T,
)
from dora_rl.core.named import Objects
from dora_rl.core.recipe.loss_configs import (
    AnyLossConfig,
    CispoConfig,
    CustomLossConfig,
    DecoupledPpoConfig,
    GspoConfig,
    Kimi15Config,
    LossConfig,
    PolicyGradientConfig,
    PpoConfig,
    TisConfig,
    ToprConfig,
)


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
    """The loss of `ppo` for any ratio. Where a bound holds the ratio, the token has no gradient."""
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


def decoupled_ppo(tokens: LossTokens, config: DecoupledPpoConfig) -> LossTerms:
    """`-sg(min(w, high)) * min(u * A, clip(u, 1 - low, 1 + high) * A)`.

    `u = pi / pi_proximal` bounds the step, `w = pi_proximal / pi_behaviour` corrects for staleness. Hilton et
    al. 2021 (2110.00641); for language models AReaL (2505.24298), whose code drops tokens with `w` above the
    bound where this holds them at it. The ratio reported is `u`.
    """
    proximal_T = tokens.proximal_logprobs_T
    assert proximal_T is not None, "decoupled_ppo needs proximal_logprobs_T"
    weight_T = ratio(proximal_T, tokens.behaviour_logprobs_T).detach().clamp(max=config.weight_high)
    ratio_T = ratio(tokens.logprobs_T, proximal_T.detach())
    terms = clipped_surrogate(ratio_T, tokens.advantages_T, config.clip_low, config.clip_high)
    return replace(terms, loss_T=weight_T * terms.loss_T)


def gspo(tokens: LossTokens, config: GspoConfig) -> LossTerms:
    """`-min(s * A, clip(s, 1 - low, 1 + high) * A)` with `s = exp(mean over the trajectory of log r)`.

    Zheng et al. 2025 (2507.18071), in its token-wise form: the value is that of `s`, the gradient each
    token's own, and both are GSPO's where a trajectory has one advantage.
    """
    log_ratio_T = tokens.logprobs_T.detach() - tokens.behaviour_logprobs_T
    log_mean_T = means_T(log_ratio_T, tokens.trajectory_T, tokens.num_trajectories)
    ratio_T = bounded_exp(log_mean_T + (tokens.logprobs_T - tokens.logprobs_T.detach()))
    return clipped_surrogate(ratio_T, tokens.advantages_T, config.clip_low, config.clip_high)


def weighted_policy_gradient(tokens: LossTokens, ratio_T: Tensor, low: float, high: float) -> LossTerms:
    """`-sg(clip(r, low, high)) * A * log pi`, of a detached ratio."""
    weight_T = ratio_T.clamp(low, high)
    return LossTerms(
        loss_T=-weight_T * tokens.advantages_T * tokens.logprobs_T,
        ratio_T=ratio_T,
        is_clipped_low_T=ratio_T < low,
        is_clipped_high_T=ratio_T > high,
    )


def cispo(tokens: LossTokens, config: CispoConfig) -> LossTerms:
    """`-sg(clip(r, low, high)) * A * log pi`. MiniMax-M1 (2506.13585), which has no lower bound."""
    ratio_T = ratio(tokens.logprobs_T.detach(), tokens.behaviour_logprobs_T)
    return weighted_policy_gradient(tokens, ratio_T, config.weight_low, config.weight_high)


def tis(tokens: LossTokens, config: TisConfig) -> LossTerms:
    """`-sg(min(r, high)) * A * log pi`. Ionides 2008; high = 1: ROLL Flash (2510.11345)."""
    ratio_T = ratio(tokens.logprobs_T.detach(), tokens.behaviour_logprobs_T)
    return weighted_policy_gradient(tokens, ratio_T, 0.0, config.weight_high)


def topr(tokens: LossTokens, config: ToprConfig) -> LossTerms:
    """`-A * log pi` where A > 0, `-sg(min(R, high)) * A * log pi` where A < 0, each times its share.

    R is the ratio of the whole trajectory, the product of its tokens'. Le Roux et al. 2025 (2503.14286); the
    two shares, and R of each token, are of ROLL Flash (2510.11345).
    """
    ratio_T = _topr_ratio(tokens, config)
    is_negative_T = tokens.advantages_T < 0
    tapered_T = config.negative_share * ratio_T.clamp(max=config.weight_high)
    weight_T = torch.where(is_negative_T, tapered_T, config.positive_share)
    return LossTerms(
        loss_T=-weight_T * tokens.advantages_T * tokens.logprobs_T,
        ratio_T=ratio_T,
        is_clipped_low_T=nowhere(ratio_T),
        is_clipped_high_T=is_negative_T & (ratio_T > config.weight_high),
    )


def _topr_ratio(tokens: LossTokens, config: ToprConfig) -> Tensor:
    log_ratio_T = tokens.logprobs_T.detach() - tokens.behaviour_logprobs_T
    if config.level == "sequence":
        log_ratio_T = sums_T(log_ratio_T, tokens.trajectory_T, tokens.num_trajectories)
    return bounded_exp(log_ratio_T)


def policy_gradient(tokens: LossTokens, config: PolicyGradientConfig) -> LossTerms:
    """`-A * log pi`. Williams 1992. The ratio is reported, not used."""
    return LossTerms(
        loss_T=-tokens.advantages_T * tokens.logprobs_T,
        ratio_T=ratio(tokens.logprobs_T.detach(), tokens.behaviour_logprobs_T),
        is_clipped_low_T=nowhere(tokens.logprobs_T),
        is_clipped_high_T=nowhere(tokens.logprobs_T),
    )


def kimi15(tokens: LossTokens, config: Kimi15Config) -> LossTerms:
    """Per trajectory `-A * sum(log pi) + tau / 2 * D^2` with `D = sum(log pi - log pi_behaviour)`.

    Kimi k1.5 (2501.12599), section 2.3.2, with `A = reward - mean of the group`. The square is shared out
    evenly over the trajectory's tokens. The ratio, `exp(D)`, is reported, not used.
    """
    log_ratio_T = sums_T(
        tokens.logprobs_T - tokens.behaviour_logprobs_T, tokens.trajectory_T, tokens.num_trajectories
    )
    length_T = lengths_N(tokens.trajectory_T, tokens.num_trajectories)[tokens.trajectory_T]
    penalty_T = config.tau / 2 * log_ratio_T.square() / length_T
    return LossTerms(
        loss_T=-tokens.advantages_T * tokens.logprobs_T + penalty_T,
        ratio_T=bounded_exp(log_ratio_T.detach()),
        is_clipped_low_T=nowhere(log_ratio_T),
        is_clipped_high_T=nowhere(log_ratio_T),
    )


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


def loss_of(config: AnyLossConfig, objects: Objects | None = None) -> Loss:
    """The loss that `config` describes; one of the user's own is imported, tried out and may be refused."""
    if isinstance(config, CustomLossConfig):
        return load_loss(config, objects)
    return Loss(
        name=type(config).__struct_config__.tag,  # type: ignore[arg-type]
        function=partial(LOSSES[type(config)], config=config),
        needs_proximal=config.needs_proximal,
    )
