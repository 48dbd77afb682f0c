"""Evaluations: held-out rows under every k-th version, reported when they are complete.

Under `partial` what was begun goes on under newer versions, as everything does: the evaluation keeps the
number of the version that it was asked for.
"""

from collections.abc import Sequence

from msgspec import Struct, field

from dora_rl.core.decisions import Close, Decision, Start
from dora_rl.core.history import Event
from dora_rl.core.inputs import Ended, EvaluationAsked, Input, Published, Scored
from dora_rl.core.recipe import Evaluation
from dora_rl.run.orchestrator.metrics import Metrics
from dora_rl.run.prompts import PromptTable


class _Round(Struct, kw_only=True):
    """One evaluation of one version."""

    num_missing: int
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class Evaluating:
    """The evaluations of a run."""

    def __init__(self, asked: Evaluation, prompts: PromptTable, metrics: Metrics) -> None:
        self._every = asked.every
        self._prompts = prompts.evaluated(asked.max_rows) if asked.every else ()
        self._metrics = metrics
        self._rounds: dict[int, _Round] = {}
        self._version_of: dict[int, int] = {}
        """The evaluation of each trajectory that is generated for one: the version it first started on."""

    @property
    def num_missing(self) -> int:
        return sum(each.num_missing for each in self._rounds.values())

    def due(self, version: int, at: float) -> list[EvaluationAsked]:
        """What to ask for now that a version is published."""
        if not self._prompts or version % self._every:
            return []
        self.begun(version, len(self._prompts))
        return [EvaluationAsked(at=at, prompts=self._prompts)]

    def hear(self, told: Input) -> None:
        """Lengths and rewards, as control is told of them."""
        match told:
            case Ended(trajectory=key, tokens=tokens) if key in self._version_of:
                self._rounds[self._version_of[key]].lengths.append(tokens)
            case Scored(trajectory=key, reward=reward) if key in self._version_of:
                self._end(key, reward, told.at)

    def watch(self, decisions: Sequence[Decision], at: float) -> None:
        """Which trajectories belong to which version, and which came to nothing."""
        for decision in decisions:
            match decision:
                case Start(evaluation=True):
                    self._version_of.setdefault(decision.trajectory, decision.version)
                case Close():
                    for key in decision.members:
                        if key in self._version_of:
                            self._end(key, None, at)

    def recall(self, events: Sequence[Event]) -> None:
        """Take up what was under way when the run was cut short."""
        version = 0
        for told, decisions in events:
            match told:
                case Published():
                    version = told.version
                case EvaluationAsked():
                    self.begun(version, len(told.prompts))
            self.hear(told)
            self.watch(decisions, told.at)

    def begun(self, version: int, num_prompts: int) -> None:
        """An evaluation of this version was asked for."""
        self._rounds[version] = _Round(num_missing=num_prompts)

    def _end(self, trajectory: int, reward: float | None, at: float) -> None:
        version = self._version_of.pop(trajectory)
        found = self._rounds[version]
        found.num_missing -= 1
        if reward is not None:
            found.rewards.append(reward)
        if not found.num_missing:
            del self._rounds[version]
            self._metrics.evaluated(version, at, found.rewards, found.lengths)
