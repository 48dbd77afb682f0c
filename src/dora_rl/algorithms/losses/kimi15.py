"""Policy mirror descent: REINFORCE and a square penalty on how far a trajectory's probability moved."""

from dora_rl.algorithms.config import Kimi15Config
from dora_rl.algorithms.ratios import bounded_exp, nowhere
from dora_rl.algorithms.segments import lengths_N, sums_T
from dora_rl.algorithms.tokens import LossTerms, LossTokens


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
