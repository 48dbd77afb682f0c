"""What exists of one member's episode: its branches, their turns, what its side effects gave.

A branch is its token ids: stretches of the environment's and of the policy's in turn, the n-th pair being the
n-th turn. So a coroutine that is run again, by whoever, is answered from here, and what it asks is compared
with what it asked before. Knows no process and no clock.
"""

from msgspec import Struct, field

from dora_rl.core.turn_finish import TurnFinish
from dora_rl.envs.episodes.snapshot import SNAPSHOT, read_snapshot
from dora_rl.store.journal_records import (
    EarlyOnce,
    JournalledBranch,
    JournalledTrajectory,
    OnceValue,
    Response,
)


class TurnRecord(Struct, kw_only=True):
    """One turn of a branch: where its tokens lie among those behind the branch's prompt."""

    asked_at: int
    """Where the environment's tokens before the turn begin."""
    begin: int
    """Where the policy's tokens begin."""
    limit: int | None
    """Most tokens the policy may draw; None in a run that goes on, until the coroutine has asked again."""
    stop: tuple[str, ...] = ()
    """Strings at which the turn ends, if the episode says so; known as long as `limit` is."""
    end: int | None = None
    """Where the policy's tokens end; None while they are drawn."""
    finish: TurnFinish | None = None
    reward: float | None = None


class OnceRecord(Struct, kw_only=True):
    """A side effect of a branch: its name, and what it gave."""

    key: str
    value: bytes
    is_journalled: bool = True
    """Whether the journal has it: before a member's first turn it has not."""

    @classmethod
    def of(cls, key: str, value: bytes, *, is_journalled: bool = True) -> "OnceRecord":
        """A record to answer from; a snapshot's value is nobody's answer, and large."""
        return cls(key=key, value=b"" if key == SNAPSHOT else value, is_journalled=is_journalled)


class BranchRecord(Struct, kw_only=True):
    """One sequence of tokens that the engine sees, each turn an extension of what came before."""

    number: int
    prompt: tuple[int, ...]
    """The prompt of the group, which only the root begins with."""
    tokens: list[int] = field(default_factory=list)
    """Tokens behind the prompt, the environment's and the policy's."""
    operations: list[TurnRecord | OnceRecord] = field(default_factory=list)
    """Turns and side effects in the order of their numbers."""
    is_trained: bool = True
    """Whether what the policy draws in this branch is trained on."""

    @classmethod
    def recalled(
        cls, journalled: JournalledBranch, prompt: tuple[int, ...], onces: tuple[OnceValue, ...]
    ) -> "BranchRecord":
        """A branch as the journal has it: the n-th pair of stretches, or what there is of it, is a turn."""
        response = journalled.response
        branch = cls(
            number=journalled.number,
            prompt=() if journalled.number else prompt,
            tokens=list(response.tokens),
            is_trained=journalled.is_trained,
        )
        ends = [*(each.start for each in response.stretches[1:]), len(response.tokens)]
        turns: list[TurnRecord] = []
        for stretch, end in zip(response.stretches, ends, strict=False):
            if stretch.version is None:
                turns.append(TurnRecord(asked_at=stretch.start, begin=end, limit=None))
            elif not turns:
                # The environment gave the first turn nothing beside the prompt.
                turns.append(TurnRecord(asked_at=0, begin=0, limit=None))
        for turn, over in zip(turns, journalled.turns, strict=False):
            turn.finish = over.finish
        for turn, following in zip(turns, [*turns[1:], None], strict=False):
            if turn.finish is not None:
                turn.end = following.asked_at if following is not None else len(branch.tokens)
        values = {each.number: each for each in onces if each.branch == journalled.number}
        remaining = iter(turns)
        for number in range(len(turns) + len(values)):
            value = values.get(number)
            branch.operations.append(
                next(remaining) if value is None else OnceRecord.of(value.key, value.value)
            )
        return branch

    @property
    def turns(self) -> list[TurnRecord]:
        return [each for each in self.operations if isinstance(each, TurnRecord)]

    @property
    def num_tokens(self) -> int:
        """Number of tokens of prompt and response."""
        return len(self.prompt) + len(self.tokens)

    def note_reward(self, number: int, reward: float | None) -> None:
        """Note what `chat.reward` was given for the turn before the operation with this number."""
        before = [each for each in self.operations[:number] if isinstance(each, TurnRecord)]
        if reward is not None and before:
            before[-1].reward = reward

    def asked(self, turn: TurnRecord) -> tuple[int, ...]:
        """What a coroutine asks with before this turn: the whole context of a branch's first, else an end."""
        environment = tuple(self.tokens[turn.asked_at : turn.begin])
        return (*self.prompt, *environment) if turn.asked_at == 0 else environment

    def drawn(self, turn: TurnRecord) -> tuple[int, ...]:
        """What the policy said in a turn."""
        return tuple(self.tokens[turn.begin : turn.end])


class EpisodeRecord(Struct, kw_only=True):
    """One attempt of one member of a group, from the reset of its environment to its end."""

    epoch: int
    row: int
    member: int
    is_evaluation: bool
    attempt: int = 0
    trajectory: int | None = None
    """The member's trajectory; None before its group is admitted."""
    number: int | None = None
    """The number under which its coroutine runs; None while none does."""
    prompt: tuple[int, ...] = ()
    """The prompt of its group, once that is admitted."""
    first_context: tuple[int, ...] = ()
    """What its first turn was asked with; empty until it is."""
    first_limit: int | None = None
    """Most tokens of the first turn, if the episode says so."""
    first_stop: tuple[str, ...] = ()
    """Strings at which the first turn ends, if the episode says so."""
    problem: str | None = None
    """What is wrong with an episode that waits for its group's admission."""
    branches: dict[int, BranchRecord] = field(default_factory=dict)
    held: int | None = None
    """The branch that the last turn was of."""
    current: TurnRecord | None = None
    """The turn that is asked for and has not ended; None while the coroutine has the word."""
    failures: int = 0
    """How often it failed before its first turn."""
    snapshot: bytes | None = None
    """Its newest snapshot, which its coroutine is begun with."""

    @property
    def num_turns(self) -> int:
        return sum(len(branch.turns) for branch in self.branches.values())

    @property
    def num_drawn(self) -> int:
        """Number of tokens that the policy drew, over all branches."""
        turns = [(branch, turn) for branch in self.branches.values() for turn in branch.turns]
        return sum((turn.end or len(branch.tokens)) - turn.begin for branch, turn in turns)

    @property
    def rewards(self) -> list[float]:
        """What `chat.reward` was given for turns so far."""
        found = [turn.reward for branch in self.branches.values() for turn in branch.turns]
        return [reward for reward in found if reward is not None]

    def recall(self, journalled: JournalledTrajectory) -> None:
        """Fill in what the journal has of this attempt; a turn that is not over goes on."""
        branches = [
            BranchRecord.recalled(each, self.prompt, journalled.onces)
            for each in journalled.every_branch
            if each.response.tokens or any(once.branch == each.number for once in journalled.onces)
        ]
        known = {each.number for each in branches}
        # A role that others play has side effects alone, under a number of its own.
        for number in dict.fromkeys(once.branch for once in journalled.onces if once.branch not in known):
            nothing = JournalledBranch(number=number, response=Response())
            branches.append(BranchRecord.recalled(nothing, self.prompt, journalled.onces))
        self.branches = {each.number: each for each in branches}
        self._recall_snapshot(journalled.onces)
        self.held = _last_branch(journalled, branches)
        if self.held is not None and self.branches[self.held].turns[-1].finish is None:
            self.current = self.branches[self.held].turns[-1]

    def early_onces(self) -> tuple[EarlyOnce, ...]:
        """The side effects that are not journalled yet, because the first turn is not begun."""
        return tuple(
            EarlyOnce(branch=branch.number, number=number, key=once.key, value=once.value)
            for branch in self.branches.values()
            for number, once in enumerate(branch.operations)
            if isinstance(once, OnceRecord) and not once.is_journalled
        )

    def recall_early(self, onces: tuple[EarlyOnce, ...]) -> None:
        """Fill in side effects from before the first turn, in the order of their numbers."""
        for once in onces:
            branch = self.branches.setdefault(once.branch, BranchRecord(number=once.branch, prompt=()))
            branch.operations.append(OnceRecord(key=once.key, value=once.value, is_journalled=False))

    def _recall_snapshot(self, onces: tuple[OnceValue, ...]) -> None:
        """Find the newest snapshot; the rewards of turns before it are nowhere else."""
        found = [(read_snapshot(once.value), once.value) for once in onces if once.key == SNAPSHOT]
        if found:
            newest, self.snapshot = max(found, key=lambda each: each[0].place)
            for branch, number, reward in newest.told_rewards:
                self.branches[branch].note_reward(number, reward)

    def next_attempt(self, attempt: int) -> "EpisodeRecord":
        """The same member with nothing of this attempt."""
        return EpisodeRecord(
            epoch=self.epoch,
            row=self.row,
            member=self.member,
            is_evaluation=self.is_evaluation,
            attempt=attempt,
            trajectory=self.trajectory,
            prompt=self.prompt,
        )


def _last_branch(journalled: JournalledTrajectory, branches: list[BranchRecord]) -> int | None:
    """The branch of the last turn: the one that is not over, else the one that was over last."""
    for branch in branches:
        if branch.turns and branch.turns[-1].finish is None:
            return branch.number
    over = [(turn.order, each.number) for each in journalled.every_branch for turn in each.turns]
    return max(over)[1] if over else None
