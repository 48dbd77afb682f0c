"""Ended trajectories become rewards, and failures of reward functions are counted.

A trajectory's text goes to the judge; its verdict becomes what control and journal hear. Failures are written
down, and nothing but failures is the end of the run: a batch's worth of trajectories in a row that failed,
in whatever way. Where calls give no answer at all (they hang, or kill their process) it ends sooner, because
each costs its time limit: after a few of them in a row. Those must last some time limits together: many calls
that wait at once for the same judge survive a short outage of it.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from dora_rl.control.ledger import Phase, Trajectory
from dora_rl.control.plane import ControlPlane
from dora_rl.core.errors import DoraError
from dora_rl.core.inputs import RewardFault, Scored
from dora_rl.core.named import Objects
from dora_rl.core.recipe import Batch
from dora_rl.core.recipe.data import ScoringConfig
from dora_rl.core.visible_text import visible
from dora_rl.envs.scoring.reward_messages import Item, RewardFailure, TrainerState
from dora_rl.launch.protocol import Launch
from dora_rl.run.metrics_writer import MetricsWriter
from dora_rl.run.prompt_table import RunPrompts
from dora_rl.run.received import Received, ScoreTrajectory
from dora_rl.run.rewards.judge import Judge
from dora_rl.run.rewards.pool import ScorerPool
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.worker_deaths import WorkerDeaths
from dora_rl.store.journal_records import Rewarded

_UNANSWERED = ("process died", "time limit")
_MAX_UNANSWERED = 8
_UNANSWERED_LIMITS = 3
"""How many time limits a row of unanswered calls must last, from the start of the first, to end the run."""
_WRITTEN = 100
"""How many failures of a kind are logged with their traceback."""
_NAME = "a reward worker"


class RewardQueue:
    """Trajectories that wait for their rewards, and the workers that compute them."""

    def __init__(
        self,
        config: ScoringConfig,
        prompts: RunPrompts,
        layout: LiveLayout,
        plane: ControlPlane,
        deaths: WorkerDeaths,
        metrics: MetricsWriter,
        *,
        launch: Launch,
        objects: Objects | None = None,
        batch: Batch,
    ) -> None:
        """A batch's worth of failed trajectories in a row ends the run."""
        self.pool = ScorerPool(
            config,
            launch=launch,
            objects=objects,
            log=layout.rewards_log,
            replaced=lambda reason: deaths.note(_NAME, reason),
        )
        self._judge = Judge(self.pool, config.rewards, self._state)
        self._metrics = metrics
        self.failures = RewardFailures(
            layout.rewards_log, max_in_a_row=batch.trajectories, time_limit_s=config.time_limit_s
        )
        self._prompts = prompts
        self._tokenizer = Tokenizer.from_file(str(layout.tokenizer))
        self._plane = plane
        self._batch = batch
        self._attempts: dict[int, int] = {}
        """The attempt of each trajectory that is being judged."""
        self._evaluated: set[tuple[int, int]] = set()
        """Version and row of each evaluation of which samples wait for the others."""

    def check(self) -> None:
        """Wait for the functions to be imported; refuse rows that lack a column they need."""
        self.pool.wait_ready(self._prompts[0].row.columns)

    def ask(self, ended: ScoreTrajectory) -> None:
        """Have a trajectory judged, and its group too if this was the last member.

        Not one that was closed by what was decided about the same messages.
        """
        key, group = ended.trajectory, self._plane.ledger.group_of(ended.trajectory)
        if group is None or group.member(key).phase != Phase.ENDED:
            return
        self._attempts[key] = ended.attempt
        text = str(self._tokenizer.decode(list(ended.tokens), skip_special_tokens=True))
        item = Item(row=self._prompts[ended.row].row, text=text, token_ids=ended.tokens)
        self._judge.trajectory_ended(key, self._judged_as(key) or ended.group, item)
        self.look_at(key, ended.group)

    def look_at(self, trajectory: int, group: int) -> None:
        """Have a group judged if nothing more comes of it, now that a member ended or was closed."""
        found, evaluated = self._plane.ledger.group_of(trajectory), self._judged_as(trajectory)
        if found is None:
            self._judge.group_ended(group)
            # Perhaps a sample of an evaluation for which the others of its row wait.
            for row in list(self._evaluated):
                self._look_at_row(row)
        elif evaluated is not None:
            self._evaluated.add(evaluated)
            self._look_at_row(evaluated)
        elif all(map(self._is_in, found.members)):
            self._judge.group_ended(group)

    def _look_at_row(self, evaluated: tuple[int, int]) -> None:
        """Have the samples of a held-out row judged together once all that are left have ended."""
        own = [g for g in self._plane.ledger.evaluating.values() if (g.version, g.prompt.row) == evaluated]
        if all(self._is_in(group.members[0]) for group in own):
            self._evaluated.discard(evaluated)
            self._judge.group_ended(evaluated)

    def _is_in(self, member: Trajectory) -> bool:
        """Whether a member is judged, closed or asked for: one that just ended may be none of these."""
        return member.phase > Phase.ENDED or member.id in self._attempts

    def _judged_as(self, trajectory: int) -> tuple[int, int] | None:
        """Version and row of a sample of an evaluation, by which it is judged; None of other trajectories."""
        found = self._plane.ledger.group_of(trajectory)
        return (found.version, found.prompt.row) if found is not None and found.is_evaluation else None

    def read(self, at: float) -> Received:
        """Judgements since the last turn of the loop, as inputs for control and payloads for the journal."""
        received = Received()
        for judgement in self._judge.poll():
            self.failures.judged(judgement.failures)
            self._metrics.judged(judgement)
            key, reward = judgement.trajectory, judgement.reward
            faults = tuple(
                RewardFault(function=failure.function, reason=failure.reason, detail=failure.summary)
                for failure in judgement.failures
            )
            received.inputs.append(
                Scored(at=at, trajectory=key, reward=reward, failures=faults, values=judgement.values)
            )
            attempt = self._attempts.pop(key)
            received.payloads.append(
                Rewarded(
                    trajectory=key,
                    attempt=attempt,
                    reward=reward,
                    values=judgement.values,
                    extras=judgement.extras,
                )
            )
        return received

    def _state(self) -> TrainerState:
        done, plane = self._plane.window.newest, self._plane
        # A stream has no epochs: the whole run is one, as TRL has it.
        num_rows = self._prompts.num_rows or plane.steps * self._batch.groups
        epoch = done * self._batch.groups / num_rows
        return TrainerState(global_step=done, max_steps=plane.steps, epoch=epoch)

    def close(self) -> None:
        self.pool.close()
        self.failures.close()


# --- failures -----------------------------------------------------------------------------------


class RewardsFailed(DoraError):
    """Reward functions fail on everything, so the run cannot go on."""


class RewardFailures:
    """Counts the failures of reward functions since this process began, and ends the run when all fail."""

    def __init__(
        self,
        log: Path,
        *,
        max_in_a_row: int,
        time_limit_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._max_in_a_row = max_in_a_row
        self._patience_s = (_UNANSWERED_LIMITS - 1) * time_limit_s
        self._clock = clock
        self.total: Counter[str] = Counter()
        """Trajectories without a reward, by the label of the failure."""
        self._calls: Counter[str] = Counter()
        self._latest: RewardFailure | None = None
        self._last: dict[str, RewardFailure] = {}
        """The last failure of each label: all members of a group share the failure of one call."""
        self._in_a_row = 0
        self._unanswered: list[float] = []
        """When each of the calls in a row that gave no answer was given up."""

    def judged(self, failures: Sequence[RewardFailure]) -> None:
        """Note that a trajectory was judged, with these failures or with none."""
        self._in_a_row = self._in_a_row + 1 if failures else 0
        if not any(failure.reason in _UNANSWERED for failure in failures):
            self._unanswered.clear()
        for failure in failures:
            self.total[failure.label] += 1
            if self._last.get(failure.label) is not failure:
                self._last[failure.label] = failure
                self._called(failure)

    def check(self) -> None:
        """Raise RewardsFailed if there is nothing but failures any more."""
        lasted_s = self._clock() - self._unanswered[0] if self._unanswered else 0.0
        if len(self._unanswered) >= _MAX_UNANSWERED and lasted_s >= self._patience_s:
            raise self._end(f"{len(self._unanswered)} calls of reward functions in a row gave no answer")
        if self._in_a_row >= self._max_in_a_row:
            raise self._end(f"rewards failed for {self._in_a_row} trajectories in a row")

    def close(self) -> None:
        """Log how many failures of each kind were not written down one by one."""
        for label, number in self._calls.items():
            if number > _WRITTEN:
                self._write(f"{label}: {number:,} times, of which the first {_WRITTEN} are above\n")

    def _called(self, failure: RewardFailure) -> None:
        self._latest = failure
        if failure.reason in _UNANSWERED:
            self._unanswered.append(self._clock())
        self._calls[failure.label] += 1
        if self._calls[failure.label] <= _WRITTEN:
            self._write(f"{failure.label}; row {failure.row}\n{failure.detail.rstrip()}\n")

    def _write(self, text: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            # What a model wrote stands in tracebacks; whoever looks at the file with `tail` is shown it only.
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {visible(text)}")

    def _end(self, what: str) -> RewardsFailed:
        last = self._latest
        assert last is not None, f"{what}, and none was counted"
        kind = last.label.removeprefix("failed: ")
        return RewardsFailed(
            f"{what}, the last one by {kind}: {last.summary}",
            hint=f"see {self._log} and mend the function",
        )
