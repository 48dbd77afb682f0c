"""The clipped surrogate on one ratio a trajectory: the unit of reward is the unit of correction."""

from dora_rl.algorithms.config import GspoConfig
from dora_rl.algorithms.losses.ppo import clipped_surrogate
from dora_rl.algorithms.ratios import bounded_exp
from dora_rl.algorithms.segments import means_T
from dora_rl.algorithms.tokens import LossTerms, LossTokens


def gspo(tokens: LossTokens, config: GspoConfig) -> LossTerms:
    """`-min(s * A, clip(s, 1 - low, 1 + high) * A)` with `s = exp(mean over the trajectory of log r)`.

    Zheng et al. 2025 (2507.18071), in its token-wise form: the value is that of `s`, the gradient each
    token's own, and both are GSPO's where a trajectory has one advantage.
    """
    log_ratio_T = tokens.logprobs_T.detach() - tokens.behaviour_logprobs_T
    log_mean_T = means_T(log_ratio_T, tokens.trajectory_T, tokens.num_trajectories)
    ratio_T = bounded_exp(log_mean_T + (tokens.logprobs_T - tokens.logprobs_T.detach()))
    return clipped_surrogate(ratio_T, tokens.advantages_T, config.clip_low, config.clip_high)
