"""What a dead run looks like, in sentences. Pure: facts in, warnings out."""

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import fmean, pvariance

from dora_rl.observe.live.facts import FailureFacts, StepFacts

_RECENT = 5
_FEWEST = 3
"""Steps below which nothing is said."""
_FLAT = 12
"""Steps below which a reward may still be about to rise."""


def dead_run_warnings(
    steps: Sequence[StepFacts], outcomes: dict[str, int], failures: Sequence[FailureFacts] = ()
) -> list[str]:
    """Everything that makes this run not worth going on with as it is."""
    recent = steps[-_RECENT:]
    lost = [*_lost(steps, outcomes), *_failed(steps, failures)]
    if len(recent) < _FEWEST:
        return lost
    return [*_variance(recent, failures), *_truncation(recent), *_flatness(steps), *lost]


def _variance(recent: Sequence[StepFacts], failures: Sequence[FailureFacts]) -> Iterator[str]:
    share = fmean(step.zero_variance_share for step in recent)
    if all(step.reward is None for step in recent):
        why = "reward functions failed" if failures else "no reward function applied"
        yield f"no trajectory of the last {len(recent)} steps has a reward: {why}"
    elif share == 1.0:
        yield (
            f"in the last {len(recent)} steps the rewards of every group were all equal, so there is nothing "
            "to learn from; the task is too hard or too easy, or the reward does not tell answers apart"
        )
    elif share > 0.8:
        yield (
            f"{share:.0%} of the groups of the last {len(recent)} steps have equal rewards and teach "
            "nothing; larger groups, a finer reward, other prompts or control.filter_zero_variance would help"
        )


def _truncation(recent: Sequence[StepFacts]) -> Iterator[str]:
    share = fmean(step.truncated_share for step in recent)
    if share > 0.8:
        whole = "all responses" if share > 0.995 else f"{share:.0%} of the responses"
        yield (
            f"{whole} of the last {len(recent)} steps were cut at the length limit; raise "
            "response.max_new_tokens, or check that the model ends its answers"
        )


def _flatness(steps: Sequence[StepFacts]) -> Iterator[str]:
    rewards = [step.reward for step in steps if step.reward is not None]
    if len(rewards) < _FLAT:
        return
    third = len(rewards) // 3
    first, last = rewards[:third], rewards[-third:]
    gain = fmean(last) - fmean(first)
    noise = sqrt((pvariance(first) + pvariance(last)) / third)
    if gain < 0 and -gain > 2 * noise and -gain > 0.01:
        yield f"the reward fell from {fmean(first):.3f} to {fmean(last):.3f} over {len(rewards)} steps"
    elif abs(gain) <= max(2 * noise, 1e-6):
        yield (
            f"the reward is flat: {fmean(first):.3f} in the first third of {len(rewards)} steps, "
            f"{fmean(last):.3f} in the last, no more than it varies from step to step"
        )


def _lost(steps: Sequence[StepFacts], outcomes: dict[str, int]) -> Iterator[str]:
    """Failures are counted, and worth a word when they are many."""
    trained = sum(step.num_trajectories for step in steps)
    for outcome, number in outcomes.items():
        if outcome.startswith("failed") and number > 0.1 * (trained + number):
            yield f"{number:,} trajectories ended as '{outcome}', beside {trained:,} that were trained on"


def _failed(steps: Sequence[StepFacts], failures: Sequence[FailureFacts]) -> Iterator[str]:
    """The same for rewards: a trajectory without one is in its batch, and teaches nothing."""
    trained = sum(step.num_trajectories for step in steps)
    for each in failures:
        if trained and each.count > 0.1 * trained:
            yield (
                f"{each.name}: {each.count:,} trajectories have no reward, beside {trained:,} that were "
                f"trained on; the first time it was {each.example}"
            )
