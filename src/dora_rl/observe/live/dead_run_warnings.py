"""Warnings that a run is not worth going on with, in sentences. Remembers only which were given."""

import re
from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import fmean

from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.algorithm import AdvantageConfig
from dora_rl.observe.live.event_facts import FailureFacts, StepFacts, WarningFacts
from dora_rl.observe.live.follower import Follower

_RECENT = 5
_FEWEST = 3
"""Number of train steps below which no warning about rewards or lengths is given."""
_FLAT = 12
"""Number of train steps below which a reward may still be about to rise."""


class Warner:
    """Judges a run after every train step, and gives each warning once."""

    def __init__(self, num_compared: int | None) -> None:
        self._num_compared = num_compared
        self._first: dict[str, tuple[int, str]] = {}
        """Train step at which each warning was first given, and its text then, by kind."""
        self._until: dict[str, int] = {}
        """The first train step after which each warning held no longer, by kind."""

    def current(self, follower: Follower) -> list[str]:
        """All warnings that hold now."""
        outcomes, failures = dict(follower.outcomes), list(follower.failures.values())
        return dead_run_warnings(follower.steps, outcomes, failures, num_compared=self._num_compared)

    def new(self, follower: Follower) -> list[str]:
        """The warnings that hold now and were not given before."""
        holding = {_kind(text): text for text in self.current(follower)}
        new = {kind: text for kind, text in holding.items() if kind not in self._first}
        done = len(follower.steps)
        self._first |= {kind: (done, text) for kind, text in new.items()}
        for kind in self._first:
            if kind in holding:
                self._until.pop(kind, None)
            else:
                self._until.setdefault(kind, done)
        return list(new.values())

    def all(self, follower: Follower) -> list[WarningFacts]:
        """All warnings given so far, in order, each with its latest text where it still holds."""
        self.new(follower)
        holding = {_kind(text): text for text in self.current(follower)}
        return [
            WarningFacts(
                step=step, text=text, now=holding.get(kind), until=self._until.get(kind, len(follower.steps))
            )
            for kind, (step, text) in self._first.items()
        ]


def num_compared(recipe: Recipe) -> int | None:
    """Number of trajectories whose rewards the advantage compares; None if it compares no groups."""
    advantage = recipe.algorithm.advantage
    if isinstance(advantage, AdvantageConfig) and advantage.baseline in ("group", "leave_one_out"):
        return recipe.batch.group_size
    return None


def dead_run_warnings(
    steps: Sequence[StepFacts],
    outcomes: dict[str, int],
    failures: Sequence[FailureFacts] = (),
    *,
    num_compared: int | None,
) -> list[str]:
    """All reasons why this run is not worth going on with as it is."""
    recent = steps[-_RECENT:]
    lost = [*_lost(steps, outcomes), *_failed(steps, failures)]
    if len(recent) < _FEWEST:
        return lost
    variance = _variance(recent, failures, num_compared)
    return [*variance, *_truncation(recent), *_flatness(steps), *lost]


def _kind(warning: str) -> str:
    """The kind of a warning: its text without the figures, which change from step to step."""
    return re.sub(r"[\d.,%-]", "", warning)


def _variance(
    recent: Sequence[StepFacts], failures: Sequence[FailureFacts], num_compared: int | None
) -> Iterator[str]:
    share = fmean(step.zero_variance_share for step in recent)
    if all(step.reward is None for step in recent):
        why = "reward functions failed" if failures else "no reward function applied"
        yield f"no trajectory of the last {len(recent)} steps has a reward: {why}"
    elif num_compared is None:
        return
    elif num_compared == 1:
        yield (
            "every group has one member and advantages compare the members of a group, so there is nothing "
            "to learn from; raise batch.group_size, or choose an algorithm that compares within the batch"
        )
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
    noise = sqrt((_variance_of(first) + _variance_of(last)) / third)
    if gain < 0 and -gain > 2 * noise and -gain > 0.01:
        yield f"the reward fell from {fmean(first):.3f} to {fmean(last):.3f} over {len(rewards)} steps"
    elif abs(gain) <= max(2 * noise, 1e-6):
        yield (
            f"the reward is flat: {fmean(first):.3f} in the first third of {len(rewards)} steps, "
            f"{fmean(last):.3f} in the last, no more than it varies from step to step"
        )


def _variance_of(values: Sequence[float]) -> float:
    mean = fmean(values)
    return fmean((value - mean) ** 2 for value in values)


def _lost(steps: Sequence[StepFacts], outcomes: dict[str, int]) -> Iterator[str]:
    """Warnings about outcomes by which many trajectories failed."""
    trained = sum(step.num_trajectories for step in steps)
    for outcome, number in outcomes.items():
        if outcome.startswith("failed") and number > 0.1 * (trained + number):
            yield f"{number:,} trajectories ended as '{outcome}', beside {trained:,} that were trained on"


def _failed(steps: Sequence[StepFacts], failures: Sequence[FailureFacts]) -> Iterator[str]:
    """Warnings about reward functions that failed often: a trajectory without a reward teaches nothing."""
    trained = sum(step.num_trajectories for step in steps)
    for each in failures:
        if trained and each.count > 0.1 * trained:
            yield (
                f"{each.name}: {each.count:,} trajectories have no reward, beside {trained:,} that were "
                f"trained on; the first time it was {each.example}"
            )
