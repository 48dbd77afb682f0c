"""PPO with the two roles of the old policy apart: what to stay near, and what the tokens came from."""

from dataclasses import replace

from dora_rl.algorithms.config import DecoupledPpoConfig
from dora_rl.algorithms.losses.ppo import clipped_surrogate
from dora_rl.algorithms.ratios import ratio
from dora_rl.algorithms.tokens import LossTerms, LossTokens


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
