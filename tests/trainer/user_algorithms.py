"""Losses and advantages as a user writes them: by name, knowing nothing of the package."""

import torch


def grpo(logprobs, behaviour_logprobs, advantages, *, clip_low=0.2, clip_high=0.2):
    """The loss of the preset `grpo`, copied."""
    ratio = (logprobs - behaviour_logprobs).clamp(-20, 20).exp()
    is_low = (advantages < 0) & (ratio < 1 - clip_low)
    is_high = (advantages > 0) & (ratio > 1 + clip_high)
    held = ratio.masked_fill(is_low, 1 - clip_low).masked_fill(is_high, 1 + clip_high)
    metrics = {"ratio": ratio, "clipped_low": is_low, "clipped_high": is_high, "squared": ratio.square()}
    return -held * advantages, metrics


def decoupled(logprobs, behaviour_logprobs, proximal_logprobs, advantages):
    """The loss `decoupled_ppo`, copied: it names the proximal policy, and so it is computed."""
    weight = (proximal_logprobs - behaviour_logprobs).clamp(-20, 20).exp().clamp(max=5.0)
    ratio = (logprobs - proximal_logprobs).clamp(-20, 20).exp()
    is_low = (advantages < 0) & (ratio < 0.8)
    is_high = (advantages > 0) & (ratio > 1.2)
    held = ratio.masked_fill(is_low, 0.8).masked_fill(is_high, 1.2)
    return weight * (-held * advantages)


def takes_everything(mask, trajectory, num_trajectories, **others):
    lengths = torch.zeros(num_trajectories, dtype=torch.int64).index_add(
        0, trajectory, torch.ones_like(trajectory)
    )
    assert mask.all()
    return -others["advantages"] * others["logprobs"] / lengths[trajectory]


def mean(logprobs, advantages):
    return -(logprobs * advantages).mean()


def number(logprobs):
    return 3.0


def infinite(logprobs, behaviour_logprobs):
    return logprobs / (logprobs - behaviour_logprobs)


def late(logprobs, advantages):
    """A number only where there are few tokens."""
    return -logprobs * advantages / (len(logprobs) < 8)


def detached(logprobs):
    return -logprobs.detach()


def raises(logprobs):
    return logprobs.reshape(3, 3)


def needs_more(logprobs, beta):
    return -beta * logprobs


def by_position(logprobs, /):
    return -logprobs


def changing(logprobs):
    return -logprobs, {} if len(logprobs) > 7 else {"seven": 1.0}


NOT_A_FUNCTION = 3


def centred(rewards, *, epsilon=1e-6):
    """The advantage of the preset `grpo`, copied."""
    relative = rewards - rewards.min()
    deviations = relative - relative.sum() / len(rewards)
    std = (deviations.square().sum() / max(1, len(rewards) - 1)).sqrt()
    return deviations / (std + epsilon)


def against_batch(rewards, batch_rewards):
    return rewards - batch_rewards.mean()


def by_length(rewards, lengths):
    return [float(reward) / int(length) for reward, length in zip(rewards, lengths, strict=True)]


def divides_by_nothing(rewards):
    return (rewards - rewards.mean()) / rewards.std()


def of_group(rewards):
    return rewards.mean()


def words(rewards):
    return "much"
