"""Evaluations: held-out rows under every k-th version and the last, reported when they are complete.

Under `partial` what was begun goes on under newer versions, as everything does: the evaluation keeps the
number of the version that it was asked for.
"""

from collections.abc import Sequence

from msgspec import Struct, field

from dora_rl.core.decisions import Close, Decision, Start
from dora_rl.core.history import Event
from dora_rl.core.inputs import Ended, EpisodeEnded, EvaluationAsked, Input, OpenFailed, Published, Scored
from dora_rl.core.pass_rates import is_passed, pass_rates
from dora_rl.core.recipe import Evaluation
from dora_rl.run.metrics_writer import MetricsWriter
from dora_rl.run.prompt_table import PromptTable


class _EvaluationRound(Struct, kw_only=True):
    """One evaluation of one version, and what is known of it."""

    num_missing: int
    rewards: list[float] = field(default_factory=list)
    unstarted: set[tuple[int, int]] = field(default_factory=set)
    """(epoch, row) of each evaluation that has not started."""
    lengths: list[int] = field(default_factory=list)
    values: list[dict[str, float | None]] = field(default_factory=list)
    """The value of each reward function, by trajectory."""
    passed: dict[int, list[bool]] = field(default_factory=dict)
    """Whether each judged sample passed, by row."""


class EvaluationTracker:
    """Asks for evaluations when they are due, and watches the run until they are complete."""

    def __init__(
        self,
        asked: Evaluation,
        steps: int,
        prompts: PromptTable,
        metrics: MetricsWriter,
        past: Sequence[Event] = (),
    ) -> None:
        """`past`: what was told and decided about evaluations before the run was cut short."""
        self._asked = asked
        self._steps = steps
        self._prompts = prompts.evaluated(asked.max_rows, asked.samples) if asked.every else ()
        self._metrics = metrics
        self._newest_version = 0
        self._asked_version: int | None = None
        """The version that the last evaluation is of."""
        self._rounds: dict[int, _EvaluationRound] = {}
        self._version_of: dict[int, int] = {}
        """The evaluation of each trajectory that is generated for one: the version it first started on."""
        self._row_of: dict[int, int] = {}
        for told, decisions in past:
            self.watch(told, decisions)

    @property
    def num_missing(self) -> int:
        """How many evaluation trajectories are asked for and not complete yet."""
        return sum(each.num_missing for each in self._rounds.values())

    def due(self, version: int, at: float) -> list[EvaluationAsked]:
        """The evaluation to ask control for now that a version is published; none where it is not due."""
        is_due = version == self._steps or version % (self._asked.every or self._steps) == 0
        if not (self._prompts and is_due):
            return []
        return [EvaluationAsked(at=at, prompts=self._prompts)]

    def due_at_end(self, at: float) -> list[EvaluationAsked]:
        """The evaluation of the last version of a run that ends before its last step; none if it is asked."""
        is_asked = self._asked_version == self._newest_version
        return [EvaluationAsked(at=at, prompts=self._prompts)] if self._prompts and not is_asked else []

    def watch(self, told: Input, decisions: list[Decision]) -> None:
        """Follow evaluations through what control is told and decides."""
        match told:
            case Published():
                self._newest_version = told.version
            case EvaluationAsked():
                self._asked_version = self._newest_version
                self._rounds[self._newest_version] = _EvaluationRound(
                    num_missing=len(told.prompts), unstarted={(each.epoch, each.row) for each in told.prompts}
                )
            case OpenFailed(is_evaluation=True):
                self._not_opened((told.epoch, told.row), told.at)
            case Ended(trajectory=key) | EpisodeEnded(trajectory=key) if key in self._version_of:
                self._rounds[self._version_of[key]].lengths.append(told.tokens)
            case Scored(trajectory=key, reward=reward) if key in self._version_of:
                self._judged(key, reward, told.values)
                self._end(key, reward, told.at)
        for decision in decisions:
            match decision:
                case Start(evaluation=True):
                    version = self._version_of.setdefault(decision.trajectory, decision.version)
                    self._rounds[version].unstarted.discard((decision.epoch, decision.row))
                    self._row_of[decision.trajectory] = decision.row
                case Close():
                    for key in self._version_of.keys() & set(decision.members):
                        self._end(key, None, told.at)

    def _judged(self, trajectory: int, reward: float | None, values: dict[str, float | None]) -> None:
        found, asked = self._rounds[self._version_of[trajectory]], self._asked
        found.values.append(values)
        passed = is_passed(reward, values, asked.pass_function, asked.pass_reward)
        if passed is not None:
            found.passed.setdefault(self._row_of[trajectory], []).append(passed)

    def _end(self, trajectory: int, reward: float | None, at: float) -> None:
        version = self._version_of.pop(trajectory)
        self._row_of.pop(trajectory)
        if reward is not None:
            self._rounds[version].rewards.append(reward)
        self._one_less(version, at)

    def _not_opened(self, prompt: tuple[int, int], at: float) -> None:
        """The environment of an evaluation could not be reset: the oldest that waits for it is over."""
        version = next((v for v, each in self._rounds.items() if prompt in each.unstarted), None)
        if version is not None:
            self._rounds[version].unstarted.discard(prompt)
            self._one_less(version, at)

    def _one_less(self, version: int, at: float) -> None:
        """Record the evaluation of a version once nothing of it is missing."""
        found = self._rounds[version]
        found.num_missing -= 1
        if not found.num_missing:
            del self._rounds[version]
            samples = self._asked.samples
            self._metrics.evaluated(
                version,
                at,
                found.rewards,
                found.lengths,
                found.values,
                samples=samples,
                rates=pass_rates(found.passed.values(), samples) if samples > 1 else {},
            )
