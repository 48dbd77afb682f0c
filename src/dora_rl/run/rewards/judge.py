"""Trajectories and groups become rewards.

Asks for a trajectory's own functions as soon as it ended and for the group's when all its members have,
and gives each trajectory's judgement once, when everything that concerns it is known. Knows the pool by
two calls.
"""

from collections.abc import Callable, Hashable, Sequence

from msgspec import Struct, field

from dora_rl.core.recipe.data import RewardConfig
from dora_rl.core.record import PlainValue, Record
from dora_rl.envs.scoring.reward_messages import (
    Item,
    Metric,
    Per,
    RewardFailure,
    ScoreRequest,
    TrainerState,
)
from dora_rl.run.rewards.pool import ScorerPool

NO_REWARD = "no reward: no function applied"
"""The label of a trajectory for which every reward function returned None."""


class Judgement(Record, frozen=True):
    """Everything the reward functions said about one trajectory."""

    trajectory: int
    reward: float | None
    """The weighted sum of the functions' values; None where no function applied, or one failed."""
    values: dict[str, float | None]
    """Each reward function's own value, without its weight."""
    failures: tuple[RewardFailure, ...]
    metrics: tuple[Metric, ...]
    """Values that functions logged; those of a group's functions stand with its first member only."""
    extras: dict[str, PlainValue] = field(default_factory=dict)
    """What functions noted about this trajectory, by column."""

    @property
    def label(self) -> str | None:
        """The label under which a trajectory without a reward is counted."""
        if self.failures:
            return self.failures[0].label
        return NO_REWARD if self.reward is None else None


class _Case(Struct, kw_only=True):
    """A trajectory that waits for its judgement."""

    trajectory: int
    item: Item
    num_waiting: int
    peers: "list[_Case]" = field(default_factory=list)
    """Every case that is judged at the same moment: all of a group that is called for as a whole."""
    values: dict[str, float | None] = field(default_factory=dict)
    failures: list[RewardFailure] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    extras: dict[str, PlainValue] = field(default_factory=dict)


class Judge:
    """Collects what reward functions say until each trajectory's judgement is complete."""

    def __init__(
        self,
        pool: ScorerPool,
        rewards: Sequence[RewardConfig],
        state: Callable[[], TrainerState] = TrainerState,
    ) -> None:
        """`state` says how far the run is, for functions that want to know."""
        self._pool = pool
        self._weights = {reward.label: reward.weight for reward in rewards}
        self._kinds: set[Per] = {reward.called_per for reward in rewards}
        self._state = state
        self._num_requests = 0
        self._asked: dict[int, list[_Case]] = {}
        self._groups: dict[Hashable, list[_Case]] = {}

    def trajectory_ended(self, trajectory: int, group: Hashable, item: Item) -> None:
        case = _Case(trajectory=trajectory, item=item, num_waiting=len(self._kinds))
        case.peers = [case]
        self._groups.setdefault(group, []).append(case)
        if "trajectory" in self._kinds:
            self._ask("trajectory", [case])

    def group_ended(self, group: Hashable) -> None:
        """Note that no further member of this group will come, so the group's functions can be called."""
        cases = self._groups.pop(group, [])
        if "group" in self._kinds and cases:
            # By number, so that the order in which they ended is nothing a reward can depend on.
            cases.sort(key=lambda case: case.trajectory)
            for case in cases:
                case.peers = cases
            self._ask("group", cases)

    def poll(self, timeout_s: float = 0.0) -> list[Judgement]:
        """Judgements that became complete since the last call; those of a group's functions all at once."""
        judgements: list[Judgement] = []
        for result in self._pool.poll(timeout_s):
            cases = self._asked.pop(result.request)
            cases[0].metrics += result.metrics
            for position, case in enumerate(cases):
                case.values |= {scores.function: scores.values[position] for scores in result.scores}
                case.extras |= {column.name: column.values[position] for column in result.extras}
                case.failures += result.failures
                case.num_waiting -= 1
            # Never a part of a group: a run that is cut short would have the rest compared without it.
            peers = cases[0].peers
            if any(case.num_waiting for case in peers):
                continue
            for case in peers:
                # In the order of the weights, not of the answers: floating-point sums depend on it.
                values = {name: case.values[name] for name in self._weights if name in case.values}
                terms = [self._weights[name] * value for name, value in values.items() if value is not None]
                judgement = Judgement(
                    trajectory=case.trajectory,
                    reward=sum(terms) if terms and not case.failures else None,
                    values=values,
                    failures=tuple(case.failures),
                    metrics=tuple(case.metrics),
                    extras=case.extras,
                )
                judgements.append(judgement)
        return judgements

    def _ask(self, per: Per, cases: list[_Case]) -> None:
        self._asked[self._num_requests] = cases
        request = ScoreRequest(
            request=self._num_requests,
            per=per,
            items=tuple(case.item for case in cases),
            state=self._state(),
        )
        self._pool.submit(request)
        self._num_requests += 1
