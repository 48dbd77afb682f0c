"""What sampling gives: answers with what judged them, row by row, and figures over all of them."""

import math

from msgspec import field

from dora_rl.core.failure_line import failure_line
from dora_rl.core.pass_rates import is_passed, pass_rates
from dora_rl.core.record import PlainValue, Record
from dora_rl.core.reward_means import mean_by_function
from dora_rl.envs.data.rows import Prompt
from dora_rl.envs.scoring.reward_messages import RewardFailure
from dora_rl.run.run_setup import RunSetup


class EnvironmentFailure(Record, frozen=True):
    """The environment of an episode failed as often as it may."""

    detail: str
    """The last failure: its kind, and what was wrong."""

    @property
    def label(self) -> str:
        return "failed: environment"

    @property
    def summary(self) -> str:
        """The failure in one line."""
        return failure_line(self.detail)


class SampledText(Record, frozen=True):
    """One answer to a row, with what rewards said of it; of an episode, all that was said."""

    text: str
    """The response; of an episode everything behind its first context, with special tokens, by branch."""
    num_tokens: int
    """Tokens that the model drew."""
    is_truncated: bool
    reward: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    """Value of each reward function by name; of an episode, what it logged."""
    extras: dict[str, PlainValue] = field(default_factory=dict)
    """What reward functions noted with `log_extra`, by column."""
    failures: tuple[RewardFailure | EnvironmentFailure, ...] = ()
    num_turns: int = 1


class SampledRow(Record, frozen=True):
    """A row, and all the samples of it."""

    row: int
    prompt: Prompt | None
    """The row's prompt; None where it has none, and an episode said what to do."""
    samples: tuple[SampledText, ...]


class SampleFigures(Record, frozen=True):
    """What a model's samples came to, over all rows."""

    num_rows: int
    is_held_out: bool
    """Whether the rows are held out; else the recipe holds none out, and they are those to train on."""
    num_samples: int
    """Samples of each row."""
    reward: float
    """Mean reward of the samples that have one; NaN where none has."""
    rewards: dict[str, float]
    """Mean of each reward function, over the samples it applies to; of episodes, of what they logged."""
    pass_rates: dict[str, float]
    """pass@k by its name, for k = 1, 2, 4, ... and all samples."""
    mean_tokens: float
    truncated_share: float
    num_failed: int
    """Samples without a reward because a reward function or an environment failed."""
    mean_turns: float = 1.0


def figures(rows: list[SampledRow], setup: RunSetup, *, is_held_out: bool) -> SampleFigures:
    """Sum up samples that were judged."""
    asked, texts = setup.recipe.evaluation, [each for row in rows for each in row.samples]
    judged = [each.reward for each in texts if each.reward is not None]
    passed = [
        [is_passed(each.reward, each.values, asked.pass_function, asked.pass_reward) for each in row.samples]
        for row in rows
    ]
    return SampleFigures(
        num_rows=len(rows),
        is_held_out=is_held_out,
        num_samples=asked.samples,
        reward=math.fsum(judged) / len(judged) if judged else math.nan,
        rewards=mean_by_function(each.values for each in texts),
        pass_rates=pass_rates([[each for each in own if each is not None] for own in passed], asked.samples),
        mean_tokens=sum(each.num_tokens for each in texts) / max(1, len(texts)),
        truncated_share=sum(each.is_truncated for each in texts) / max(1, len(texts)),
        num_failed=sum(bool(each.failures) for each in texts),
        mean_turns=sum(each.num_turns for each in texts) / max(1, len(texts)),
    )
