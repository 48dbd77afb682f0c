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
from dora_rl.run.metrics_writer import MetricsWriter
from dora_rl.run.prompt_table import PromptTable


class _EvaluationRound(Struct, kw_only=True):
    """One evaluation of one version, and what is known of it."""

    num_missing: int
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    values: list[dict[str, float | None]] = field(default_factory=list)
    """The value of each reward function, by trajectory."""


class EvaluationTracker:
    """Asks for evaluations when they are due, and watches the run until they are complete."""

    def __init__(
        self,
        asked: Evaluation,
        prompts: PromptTable,
        metrics: MetricsWriter,
        past: Sequence[Event] = (),
    ) -> None:
        """`past`: what was told and decided about evaluations before the run was cut short."""
        self._every = asked.every
        self._prompts = prompts.evaluated(asked.max_rows) if asked.every else ()
        self._metrics = metrics
        self._newest_version = 0
        self._rounds: dict[int, _EvaluationRound] = {}
        self._version_of: dict[int, int] = {}
        """The evaluation of each trajectory that is generated for one: the version it first started on."""
        for told, decisions in past:
            self.watch(told, decisions)

    @property
    def num_missing(self) -> int:
        """How many evaluation trajectories are asked for and not complete yet."""
        return sum(each.num_missing for each in self._rounds.values())

    def due(self, version: int, at: float) -> list[EvaluationAsked]:
        """The evaluation to ask control for now that a version is published; none where it is not due."""
        if not self._prompts or version % self._every:
            return []
        return [EvaluationAsked(at=at, prompts=self._prompts)]

    def watch(self, told: Input, decisions: list[Decision]) -> None:
        """Follow evaluations through what control is told and decides."""
        match told:
            case Published():
                self._newest_version = told.version
            case EvaluationAsked():
                self._rounds[self._newest_version] = _EvaluationRound(num_missing=len(told.prompts))
            case Ended(trajectory=key, tokens=tokens) if key in self._version_of:
                self._rounds[self._version_of[key]].lengths.append(tokens)
            case Scored(trajectory=key, reward=reward) if key in self._version_of:
                self._rounds[self._version_of[key]].values.append(told.values)
                self._end(key, reward, told.at)
        for decision in decisions:
            match decision:
                case Start(evaluation=True):
                    self._version_of.setdefault(decision.trajectory, decision.version)
                case Close():
                    for key in self._version_of.keys() & set(decision.members):
                        self._end(key, None, told.at)

    def _end(self, trajectory: int, reward: float | None, at: float) -> None:
        version = self._version_of.pop(trajectory)
        found = self._rounds[version]
        found.num_missing -= 1
        if reward is not None:
            found.rewards.append(reward)
        if not found.num_missing:
            del self._rounds[version]
            self._metrics.evaluated(version, at, found.rewards, found.lengths, found.values)
