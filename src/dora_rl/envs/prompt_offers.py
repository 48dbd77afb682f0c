"""From a source's choices to offers, and from events to scores: what every run does around its source.

Both are folds over the events of a run, so a resumed run gets them from its journal.
"""

from collections.abc import Sequence

from msgspec import Struct, field

from dora_rl.core.decisions import Admit, Close, Decision
from dora_rl.core.errors import UserError
from dora_rl.core.inputs import Input, PromptsOffered, QueuedPrompt, Scored
from dora_rl.envs.prompt_source import GroupScore


class PromptOffers:
    """Turns chosen rows into offers, counting each row's visits so that no two groups draw alike."""

    def __init__(self, prompt_tokens: Sequence[int]) -> None:
        """`prompt_tokens` is the length of each row's prompt."""
        self._tokens = prompt_tokens
        self._visits: dict[int, int] = {}

    def offer(self, rows: Sequence[int] | None, at: float) -> PromptsOffered:
        """The input that offers the chosen rows to control; None says that the source is exhausted."""
        if rows is None:
            return PromptsOffered(at=at, prompts=(), is_last=True)
        return PromptsOffered(at=at, prompts=tuple(map(self._visit, rows)))

    def recall(self, event: PromptsOffered) -> None:
        """Count the visits of an offer from before the run was resumed."""
        for prompt in event.prompts:
            self._visits[prompt.row] = prompt.epoch + 1

    def _visit(self, row: int) -> QueuedPrompt:
        if not (isinstance(row, int) and 0 <= row < len(self._tokens)):
            raise UserError(
                f"the source of prompts chose row {row!r}, which does not exist",
                hint=f"there are {len(self._tokens):,} rows to train on, numbered from 0",
            )
        epoch = self._visits.get(row, 0)
        self._visits[row] = epoch + 1
        return QueuedPrompt(epoch=epoch, row=row, tokens=self._tokens[row])


def exhausted(num_steps: int, steps: int) -> UserError:
    """The error of a run whose source of prompts has no more."""
    return UserError(
        f"the source of prompts is exhausted after {num_steps} of {steps} steps: no batch fills any more",
        hint=f"give it more rows or epochs, or set steps={num_steps}",
    )


class _OpenGroup(Struct):
    """A group that is neither finished nor closed."""

    admit: Admit
    rewards: dict[int, float | None] = field(default_factory=dict)
    """Reward of each member that was scored, by trajectory."""
    closed: set[int] = field(default_factory=set)
    """Members that ended in a counted outcome."""
    outcome: str = "finished"


class GroupScores:
    """Collects the rewards of each group, and gives its score once, when it is finished or closed."""

    def __init__(self, *, group_size: int) -> None:
        self._group_size = group_size
        self._open: dict[int, _OpenGroup] = {}

    def watch(self, told: Input, decisions: Sequence[Decision]) -> list[GroupScore]:
        """The scores of the groups that this event finished or closed."""
        changed: dict[int, None] = {}
        if isinstance(told, Scored) and (group := self._open.get(told.trajectory // self._group_size)):
            group.rewards[told.trajectory] = told.reward
            changed[group.admit.group] = None
        for decision in decisions:
            if isinstance(decision, Admit):
                self._open[decision.group] = _OpenGroup(decision)
            elif isinstance(decision, Close) and (closed := self._open.get(decision.group)):
                closed.closed.update(decision.members)
                closed.outcome = decision.outcome
                changed[decision.group] = None
        return [score for key in changed if (score := self._ended(key)) is not None]

    def _ended(self, key: int) -> GroupScore | None:
        """The score of a group; None while members are neither scored nor closed."""
        group = self._open[key]
        if len(group.rewards.keys() | group.closed) < self._group_size:
            return None
        del self._open[key]
        return GroupScore(
            row=group.admit.row,
            epoch=group.admit.epoch,
            version=group.admit.version,
            rewards=tuple(reward for _, reward in sorted(group.rewards.items(), key=lambda each: each[0])),
            outcome=group.outcome if len(group.closed) == self._group_size else "finished",
        )
