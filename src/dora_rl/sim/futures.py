"""Futures: what the world knows of each trajectory and control does not."""

from collections.abc import Iterable

from msgspec import Struct

from dora_rl.control.fleet import Cohort
from dora_rl.core.decisions import Start
from dora_rl.core.recipe import Recipe
from dora_rl.sim.truth import Truth


class Future(Struct, gc=False):
    """How one trajectory will go: where its turns end, and what of it is journalled."""

    attempt: int
    is_evaluation: bool
    key: tuple[int, ...]
    """What its latencies and failures are drawn by: its place among episodes, else its number."""
    prompt_tokens: int
    ends: tuple[int, ...]
    """Tokens after the prompt (environment tokens included) at which each turn ends."""
    turn: int = 0
    journalled: int = 0
    """Number of tokens that survive the death of an instance."""
    total_tokens: int = 0
    """Tokens there are to train on, once the trajectory ended."""
    appended: int = 0
    """Number of journalled tokens that are the environment's."""
    question: int | None = None
    """The number of the role's turn that it is; None for what the policy says."""
    is_over: bool = False
    """Whether its episode ended: its environment has nothing more to say."""

    @property
    def until(self) -> int:
        """Tokens after the prompt at which the present turn ends."""
        return self.ends[self.turn]

    @property
    def has_more_turns(self) -> bool:
        return self.turn + 1 < len(self.ends)

    def continue_from(self, tokens: int) -> int:
        """Continue after `tokens`, as far as they survived, and return how many did.

        Each turn generates at least its last token.
        """
        kept = min(tokens, self.journalled)
        while self.has_more_turns and self.until <= kept:
            self.turn += 1
        return min(kept, self.until - 1)


class Futures:
    """The futures of all trajectories that have not been trained on or closed."""

    def __init__(self, recipe: Recipe, truth: Truth) -> None:
        self._truth = truth
        self._group_size = recipe.batch.group_size
        self._environment_tokens = recipe.task.turns.environment_tokens
        self._is_episodic = recipe.episode is not None
        self._lag = recipe.simulation.faults.journal_lag_tokens
        self._of: dict[int, Future] = {}
        self._role_tokens: dict[int, int] = {}
        """Tokens of the turns of roles that were asked for, by their numbers."""

    def __getitem__(self, trajectory: int) -> Future:
        return self._of[trajectory]

    def get(self, trajectory: int) -> Future | None:
        return self._of.get(trajectory)

    def started(self, start: Start) -> Future:
        """The future of a trajectory that starts: kept when it continues, drawn again for another attempt."""
        future = self._of.get(start.trajectory)
        if start.question is not None:
            tokens = self._role_tokens[start.question]
            turn = Future(start.attempt, False, (), start.prompt_tokens, (tokens,), question=start.question)
            return self._of.setdefault(start.trajectory, turn)
        if future is None or future.attempt != start.attempt:
            key = (start.epoch, start.row, start.member) if self._is_episodic else (start.trajectory,)
            ends = self._turn_ends(start, key)
            future = Future(start.attempt, start.evaluation, key, start.prompt_tokens, ends)
            self._of[start.trajectory] = future
        return future

    def role_asked(self, question: int, tokens: int) -> None:
        """A role will say so many tokens in the turn that is asked for."""
        self._role_tokens[question] = tokens

    def role_over(self, question: int) -> None:
        """The turn of a role was said, or is awaited no longer."""
        del self._role_tokens[question]

    def journal(self, trajectory: int, tokens: float) -> None:
        """Record what survives of a trajectory whose instance dies: all but the last tokens."""
        if (future := self._of.get(trajectory)) is not None:
            future.journalled = max(future.journalled, int(tokens) - self._lag)

    def forget(self, trajectories: Iterable[int]) -> None:
        for trajectory in trajectories:
            self._of.pop(trajectory, None)

    def group_tokens(self, group: int) -> int:
        """Tokens of all members of a group: what training on it costs."""
        of = self._of
        return sum(of[key].total_tokens for key in self.members(group) if key in of)

    def members(self, group: int) -> range:
        return range(group * self._group_size, (group + 1) * self._group_size)

    def left(self, cohort: Cohort, clock: float) -> float:
        """Tokens the running requests of a cohort will still generate: what only an oracle knows."""
        return sum(max(1.0, self._of[t.id].ends[-1] - (clock - t.offset)) for t in cohort.running.values())

    def _turn_ends(self, start: Start, key: tuple[int, ...]) -> tuple[int, ...]:
        total = self._truth.response_tokens(start.epoch, start.row, start.member, start.attempt)
        turns = self._truth.turns(key, start.attempt)
        if turns == 1 or total == 1:
            return (total,)
        turns, extra = min(turns, total), self._environment_tokens
        return tuple(total * (i + 1) // turns + i * extra for i in range(turns))
