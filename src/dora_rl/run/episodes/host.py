"""Episodes of a run: opened, started, ended; what they ask and say becomes inputs, payloads and effects.

Open ──> BeginEpisode for each member ──> first TurnAsked of all ──> Opened
Start ──> the first turn is generated
turn ended: TurnEnded, then TurnTaken to its worker ──> TurnAsked: EnvironmentReplied ──> Resume or Start
EpisodeDone: EpisodeEnded, Scored        EpisodeBroken: EnvironmentFailed ──> Reopen ──> BeginEpisode
"""

import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

from dora_rl.control.ledger import Phase
from dora_rl.control.plane import ControlPlane
from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.errors import DoraError
from dora_rl.core.failure_line import failure_line
from dora_rl.core.turn_finish import TurnFinish
from dora_rl.core.visible_text import visible
from dora_rl.envs.episodes import episode_messages as say
from dora_rl.run.episodes.episode_record import EpisodeRecord
from dora_rl.run.episodes.episode_turns import EpisodeDiffers, EpisodeTurns
from dora_rl.run.episodes.opened_prompts import OpeningPrompt, PromptKey
from dora_rl.run.episodes.pool import EpisodeLost, EpisodePool, EpisodeWord
from dora_rl.run.episodes.role_turns import RoleTurns
from dora_rl.run.prompt_table import NumberedPrompts
from dora_rl.run.received import AnswerOperation, AnswerRole, Received
from dora_rl.run.request_table import RequestTable, RoleTurn
from dora_rl.run.run_setup import RunSetup
from dora_rl.store.journal import Journal
from dora_rl.store.journal_records import EpisodeContexts, EpisodeOver, Rewarded, TurnReward

_WRITTEN = 200
"""How many failures are logged with their traceback."""
_RETRY_S = 1.0
"""Seconds before an environment that failed to start is tried again; twice as long each time."""


class EpisodesFailed(DoraError):
    """Every episode fails, so the run cannot go on."""


class EpisodeHost:
    """All open episodes of a run."""

    def __init__(
        self,
        setup: RunSetup,
        prompts: NumberedPrompts,
        requests: RequestTable,
        pool: EpisodePool,
        log: Path,
    ) -> None:
        """Failures are written to `log` with their tracebacks."""
        self._recipe = setup.recipe
        self._prompts = prompts
        self._requests = requests
        self._pool = pool
        self._log = log
        self._turns = EpisodeTurns(setup, requests, pool)
        self.roles = RoleTurns(setup, requests, pool.tell)
        """The turns of roles that a frozen version plays."""
        self._next = 0
        self._running: dict[int, EpisodeRecord] = {}
        """Episodes whose coroutines run, by the number under which they do."""
        self._of_trajectory: dict[int, EpisodeRecord] = {}
        """Episodes of admitted groups, by trajectory."""
        self._openings: dict[PromptKey, deque[OpeningPrompt]] = {}
        """Prompts whose environments are being reset or are ready; an evaluated row may be there twice."""
        self._retries: list[tuple[float, EpisodeRecord]] = []
        self._cut: list[EpisodeRecord] = []
        self._failing: list[EpisodeRecord] = []
        """Members that failed between the opening of their group and its admission."""
        self.failures: Counter[str] = Counter()
        """Failures of environments since this process began, by their kind."""
        self._failed_in_a_row = 0
        self._died_at: float | None = None
        self._last_failure = ""

    # --- decisions ------------------------------------------------------------------------------

    def open(self, decision: do.Open) -> None:
        """Begin the episodes of a queued prompt: all members of a group, or the one that is evaluated."""
        is_evaluation = decision.is_evaluation
        num_members = 1 if is_evaluation else self._recipe.batch.group_size
        members = [
            EpisodeRecord(epoch=decision.epoch, row=decision.row, member=member, is_evaluation=is_evaluation)
            for member in range(num_members)
        ]
        key = (is_evaluation, decision.epoch, decision.row)
        self._openings.setdefault(key, deque()).append(OpeningPrompt(key=key, members=members))
        for record in members:
            self._begin(record)

    def prompt_of(self, decision: do.Admit | do.Start) -> tuple[int, ...]:
        """The prompt of a group that is admitted now; its members are known as trajectories from here on."""
        key = (isinstance(decision, do.Start), decision.epoch, decision.row)
        ready = next(each for each in self._openings[key] if each.prompt)
        self._remove(ready)
        for record in ready.members:
            record.trajectory = decision.group * self._recipe.batch.group_size + record.member
            record.prompt = ready.prompt
            self._of_trajectory[record.trajectory] = record
        self._failing += [record for record in ready.members if record.problem is not None]
        return ready.prompt

    def started(self, start: do.Start) -> bool:
        """Note that a trajectory starts or goes on; returns whether its turn is known already."""
        if start.attempt != self._of_trajectory[start.trajectory].attempt:
            # Its engine cannot go on behind tokens, and its instance was lost.
            self.reopen(do.Reopen(trajectory=start.trajectory, attempt=start.attempt))
        return self._turns.start(self._of_trajectory[start.trajectory], start)

    def reopen(self, decision: do.Reopen) -> None:
        """Begin the next attempt of a member whose environment failed."""
        before = self._of_trajectory[decision.trajectory]
        self._stop(before)
        self._requests.partial.pop(decision.trajectory, None)
        record = before.next_attempt(decision.attempt)
        self._of_trajectory[decision.trajectory] = record
        self._begin(record)

    def cut(self, decision: do.Cut) -> None:
        """End an episode that the window waited for too long; its end is told with the next turn."""
        record = self._of_trajectory.get(decision.trajectory)
        if record is not None:
            self._stop(record)
            self._cut.append(record)

    def forget(self, trajectory: int) -> None:
        """Stop and forget the episode of a trajectory that ended or was closed."""
        record = self._of_trajectory.pop(trajectory, None)
        if record is not None:
            self._stop(record)
            # Control may have closed its group, in which it is one too many, with the same breath.
            self._cut = [each for each in self._cut if each is not record]
            self._failing = [each for each in self._failing if each is not record]

    def answer(self, effect: AnswerOperation) -> None:
        """Let an episode go on with what is durable now: how its turn ended, or what its side effect gave."""
        record = self._of_trajectory.get(effect.trajectory)
        if record is not None:
            self._turns.answer(record, effect.branch, effect.number)

    def answer_role(self, effect: AnswerRole) -> None:
        """Let an episode go on with what its role said."""
        self.roles.said(effect)

    def awaits_role(self, turn: RoleTurn) -> bool:
        """Whether an episode still awaits this turn of a role."""
        return self.roles.turn(turn.question) is not None

    # --- a run that goes on ------------------------------------------------------------------------

    def take_up(self, plane: ControlPlane, journal: Journal, openings: Sequence[do.Open]) -> None:
        """Run every episode again that was open when the run was cut short; what is known is answered."""
        known = {each.trajectory: each for each in journal.unfinished()}
        for group in (*plane.ledger.groups.values(), *plane.ledger.evaluating.values()):
            prompt = journal.prompt(group.id)
            for member in group.members if prompt is not None else ():
                if member.phase >= Phase.ENDED:
                    continue
                record = EpisodeRecord(
                    epoch=group.prompt.epoch,
                    row=group.prompt.row,
                    member=member.member,
                    is_evaluation=group.is_evaluation,
                    attempt=member.attempt,
                    trajectory=member.id,
                    prompt=prompt or (),
                )
                if (found := known.get(member.id)) is not None and found.key.attempt == member.attempt:
                    record.recall(found)
                self._of_trajectory[member.id] = record
                self._begin(record)
        contexts = list(journal.opened())
        for opening in openings:
            self.open(opening)
            key = (opening.is_evaluation, opening.epoch, opening.row)
            found_contexts = next((c for c in contexts if (c.is_evaluation, c.epoch, c.row) == key), None)
            if found_contexts is not None:
                contexts.remove(found_contexts)
                self._openings[key][-1].recall(found_contexts)

    # --- the loop -------------------------------------------------------------------------------

    def turn_ended(self, trajectory: int, finish: TurnFinish) -> Received:
        """Take note of the end of a turn, whose tokens are all known."""
        return self._turns.ended(self._of_trajectory[trajectory], finish)

    def read(self, at: float) -> Received:
        """What the episodes asked and said since the last turn of the loop."""
        received = Received(payloads=self._turns.late_payloads())
        for word in self._pool.words():
            record = self._running.get(word.episode)
            if record is None:
                continue  # It is over.
            try:
                self._heard(record, word, at, received)
            except EpisodeDiffers as error:
                self._broken(record, "differs", error.message, at, received)
        failing, self._failing = self._failing, []
        for record in failing:
            self._broken(record, "differs", record.problem or "", at, received)
        cut, self._cut = self._cut, []
        for record in cut:
            reward = sum(record.rewards) if record.rewards else None
            self._end(record, reward, {}, at, received, is_truncated=True)
        self._try_again()
        received.inputs += self.roles.dropped(at)
        return received

    def _heard(self, record: EpisodeRecord, word: EpisodeWord, at: float, received: Received) -> None:
        match word:
            case EpisodeLost():
                del self._running[word.episode]
                self.roles.let_go(word.episode)
                self._begin(record)
            case say.TurnAsked():
                self._turns.asked(record, word, at, received)
                if record.trajectory is None:
                    self._look_at(self._opening(record), at, received)
            case say.OnceAsked():
                self._turns.once_asked(record, word)
            case say.OnceDone():
                self._turns.once_done(record, word, received)
            case say.RoleAsked():
                self.roles.asked(record, word, at, received)
            case say.EpisodeDone():
                self._done(record, word, at, received)
            case say.EpisodeBroken(reason=reason, detail=detail):
                self._broken(record, reason, detail, at, received)

    def _look_at(self, opening: OpeningPrompt, at: float, received: Received) -> None:
        """Tell control if all members of a prompt are reset now."""
        if opening.prompt or not opening.is_complete:
            return
        opening.settle()
        is_evaluation, epoch, row = opening.key
        received.payloads.append(
            EpisodeContexts(
                epoch=epoch,
                row=row,
                is_evaluation=is_evaluation,
                contexts=tuple(opening.contexts),
                onces=opening.onces,
            )
        )
        tokens = len(opening.prompt)
        received.inputs.append(
            told.Opened(at=at, epoch=epoch, row=row, tokens=tokens, is_evaluation=is_evaluation)
        )

    # --- ends -----------------------------------------------------------------------------------

    def _done(self, record: EpisodeRecord, word: say.EpisodeDone, at: float, received: Received) -> None:
        """An episode returned: its member has ended, and its reward is known."""
        if record.trajectory is None or not record.num_turns:
            self._broken(record, "wrong result", "it ended before its first turn", at, received)
            return
        for number, reward in word.last_rewards.items():
            record.branches[number].turns[-1].reward = reward
        self._failed_in_a_row = 0
        self._end(record, word.reward, word.values, at, received, is_truncated=word.is_truncated)

    def _end(
        self,
        record: EpisodeRecord,
        reward: float | None,
        values: dict[str, float],
        at: float,
        received: Received,
        *,
        is_truncated: bool,
    ) -> None:
        key = record.trajectory
        assert key is not None, "only a trajectory ends"
        received.inputs += [
            told.EpisodeEnded(at=at, trajectory=key, tokens=record.num_drawn, truncated=is_truncated),
            told.Scored(at=at, trajectory=key, reward=reward, values=dict(values)),
        ]
        received.payloads += [
            EpisodeOver(trajectory=key, attempt=record.attempt, is_truncated=is_truncated),
            Rewarded(
                trajectory=key,
                attempt=record.attempt,
                reward=reward,
                values=dict(values),
                turns=tuple(
                    TurnReward(branch=branch.number, turn=number, reward=turn.reward)
                    for branch in record.branches.values()
                    for number, turn in enumerate(branch.turns)
                    if turn.reward is not None
                ),
            ),
        ]
        self.forget(key)
        self._requests.partial.pop(key, None)

    def _broken(self, record: EpisodeRecord, reason: str, detail: str, at: float, received: Received) -> None:
        """An environment failed: another attempt, or before the group's admission another start."""
        self.failures[f"failed: environment, {reason}"] += 1
        # All episodes that one process took with it are one failure.
        died_at = at if reason == "process died" else None
        self._failed_in_a_row += died_at is None or died_at != self._died_at
        self._died_at = died_at
        self._last_failure = f"{reason}: {failure_line(detail)}"
        if self.failures.total() <= _WRITTEN:
            with self._log.open("a", encoding="utf-8") as log:
                # What a model wrote stands in tracebacks; whoever looks at the file is shown it only.
                log.write(
                    f"{time.strftime('%Y-%m-%d %H:%M:%S')} {visible(self._named(record, reason, detail))}\n"
                )
        self._stop(record)
        if record.trajectory is not None:
            received.inputs.append(
                told.EnvironmentFailed(at=at, trajectory=record.trajectory, reason=self._last_failure)
            )
            return
        record.failures += 1
        opening = self._opening(record)
        if opening.prompt:
            # Control may admit it at any moment: the member fails then, and is tried again.
            record.problem = detail
        elif record.failures < self._recipe.control.environment_tries:
            pause_s = _RETRY_S * 2 ** (record.failures - 1)
            self._retries.append((time.monotonic() + pause_s, record))
        else:
            self._give_up(opening, at, received)

    @staticmethod
    def _named(record: EpisodeRecord, reason: str, detail: str) -> str:
        return (
            f"row {record.row}, member {record.member}, attempt {record.attempt}: {reason}\n{detail.rstrip()}"
        )

    def _give_up(self, opening: OpeningPrompt, at: float, received: Received) -> None:
        self._remove(opening)
        for member in opening.members:
            self._stop(member)
        is_evaluation, epoch, row = opening.key
        received.inputs.append(
            told.OpenFailed(
                at=at, epoch=epoch, row=row, reason=self._last_failure, is_evaluation=is_evaluation
            )
        )

    def check(self) -> None:
        """Raise EpisodesFailed if nothing but failures comes any more."""
        if self._failed_in_a_row >= self._recipe.batch.trajectories:
            raise EpisodesFailed(
                f"{self._failed_in_a_row} episodes failed in a row, the last one: {self._last_failure}",
                hint=f"see {self._log} and mend the environment",
            )

    # --- inside ---------------------------------------------------------------------------------

    def _begin(self, record: EpisodeRecord) -> None:
        """Run the coroutine of an episode, for the first time or again."""
        number, self._next = self._next, self._next + 1
        record.number = number
        self._running[number] = record
        self._pool.begin(
            say.BeginEpisode(
                episode=number,
                row=self._prompts[record.row].row,
                epoch=record.epoch,
                member=record.member,
                attempt=record.attempt,
                seed=self._recipe.seed,
                is_evaluation=record.is_evaluation,
                snapshot=record.snapshot,
            )
        )

    def _stop(self, record: EpisodeRecord) -> None:
        """End the coroutine of an episode, if one runs; what is recorded of it stays."""
        self._retries = [(when, each) for when, each in self._retries if each is not record]
        if record.number is not None:
            self.roles.let_go(record.number)
            del self._running[record.number]
            self._pool.end(record.number)
            record.number = None

    def _try_again(self) -> None:
        now = time.monotonic()
        due = [record for when, record in self._retries if when <= now]
        self._retries = [(when, record) for when, record in self._retries if when > now]
        for record in due:
            self._begin(record)

    def _opening(self, record: EpisodeRecord) -> OpeningPrompt:
        key = (record.is_evaluation, record.epoch, record.row)
        return next(each for each in self._openings[key] if any(m is record for m in each.members))

    def _remove(self, opening: OpeningPrompt) -> None:
        left = deque(each for each in self._openings[opening.key] if each is not opening)
        if left:
            self._openings[opening.key] = left
        else:
            del self._openings[opening.key]
