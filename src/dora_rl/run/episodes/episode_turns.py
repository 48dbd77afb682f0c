"""Turns and side effects of episodes: asked for, compared with what is recorded, begun, answered.

A worker asks for everything, also when its episode runs again after a crash; what was asked before is
compared with what is recorded and answered from there. What an answer rests on is durable before it is given.
"""

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.errors import DoraError
from dora_rl.core.turn_finish import TurnFinish
from dora_rl.envs.episodes import episode_messages as say
from dora_rl.envs.episodes.snapshot import SNAPSHOT
from dora_rl.run.episodes.episode_record import BranchRecord, EpisodeRecord, OnceRecord, TurnRecord
from dora_rl.run.episodes.pool import EpisodePool
from dora_rl.run.received import AnswerOperation, ContinueRequest, Received
from dora_rl.run.request_table import EpisodeTurn, PartialTrajectory, RequestTable
from dora_rl.run.run_setup import RunSetup
from dora_rl.store.journal_records import AnyPayload, EarlyOnce, OnceValue, Progress, TurnFinished


class EpisodeDiffers(DoraError):
    """An episode that runs again asks for something else than it did before."""


class EpisodeTurns:
    """Lets episodes take turns, and answers what they ask."""

    def __init__(self, setup: RunSetup, requests: RequestTable, pool: EpisodePool) -> None:
        settings = setup.recipe.episode
        assert settings is not None, "a run without episodes has no turns of them"
        self._settings = settings
        self._max_new_tokens = setup.max_new_tokens
        self._requests = requests
        self._pool = pool
        self._late: list[AnyPayload] = []
        """Payloads that wait for the Start that they come behind."""

    def late_payloads(self) -> list[AnyPayload]:
        """What is to be journalled now that the Starts it comes behind are."""
        late, self._late = self._late, []
        return late

    # --- asked ----------------------------------------------------------------------------------

    def asked(self, record: EpisodeRecord, word: say.TurnAsked, at: float, received: Received) -> None:
        """Compare and answer a turn that is known, begin or refuse one that is not.

        Raises EpisodeDiffers where it is not what was asked before.
        """
        branch = record.branches.get(word.branch)
        if not word.tokens:
            raise EpisodeDiffers(f"operation {word.number} of branch {word.branch} says nothing")
        if branch is not None:
            branch.note_reward(word.number, word.reward)
        if branch is not None and word.number < len(branch.operations):
            known = branch.operations[word.number]
            if not isinstance(known, TurnRecord) or branch.asked(known) != word.tokens:
                raise EpisodeDiffers(f"operation {word.number} of branch {word.branch} is not what it was")
            if known.finish is not None:
                self.answer(record, word.branch, word.number)
            elif known.limit is None:
                self._go_on(record, branch, known, word, received)
        elif record.num_turns == 0:
            self._asked_first(record, word, at, received)
        elif (truncation := self._truncation(record, branch, word)) is not None:
            assert record.number is not None, "an episode that asks runs"
            refused = say.TurnTaken(
                episode=record.number, branch=word.branch, number=word.number, tokens=(), finish=truncation
            )
            self._pool.tell(refused)
        else:
            self._begin_turn(record, branch, word, at, received)

    def _asked_first(self, record: EpisodeRecord, word: say.TurnAsked, at: float, received: Received) -> None:
        """The first turn of an attempt: its environment is reset."""
        if record.first_context:
            if record.first_context != word.tokens:
                raise EpisodeDiffers("it begins otherwise than it did")
            return
        limit = self._settings.max_context_tokens
        if len(word.tokens) >= limit:
            raise EpisodeDiffers(
                f"it begins with {len(word.tokens)} tokens; episode.max_context_tokens is {limit}"
            )
        if word.tokens[: len(record.prompt)] != record.prompt:
            raise EpisodeDiffers("it begins otherwise than its group")
        record.first_context = word.tokens
        record.first_limit, record.first_stop = word.max_tokens, word.stop
        key = record.trajectory
        if key is None:
            return
        placed = self._requests.of(key)
        if placed is None:
            # A later attempt: it starts when control has heard that its environment is reset.
            received.inputs.append(
                told.EnvironmentReplied(at=at, trajectory=key, tokens=0, context=len(word.tokens))
            )
        else:
            # A run that goes on started it before anybody knew what it begins with.
            self.start(record, self._requests.partial[key].start)
            received.payloads += self.late_payloads()
            received.effects.append(ContinueRequest(trajectory=key, request=placed.number))

    def _truncation(
        self, record: EpisodeRecord, branch: BranchRecord | None, word: say.TurnAsked
    ) -> say.Truncation | None:
        """Why an episode gets no further turn; None if it does."""
        if record.num_turns >= self._settings.max_turns:
            return "turns"
        num_tokens = len(word.tokens) + (branch.num_tokens if branch is not None else 0)
        return "context" if num_tokens >= self._settings.max_context_tokens else None

    # --- begun ----------------------------------------------------------------------------------

    def start(self, record: EpisodeRecord, start: do.Start) -> bool:
        """Let a trajectory that starts or goes on be generated; returns whether its turn is known."""
        if record.num_turns == 0 and record.first_context:
            self._begin_first(record)
        if record.current is not None and record.current.limit is not None:
            self._install(record, start)
        return record.current is not None and record.current.limit is not None

    def _go_on(
        self,
        record: EpisodeRecord,
        branch: BranchRecord,
        turn: TurnRecord,
        word: say.TurnAsked,
        received: Received,
    ) -> None:
        """Let a turn that a run was resumed in be generated, now that its limit is known again."""
        key, before = record.trajectory, branch.num_tokens - (len(branch.tokens) - turn.begin)
        assert key is not None, "a turn that was begun is of a trajectory"
        turn.limit, turn.stop = self._limit(before, word.max_tokens), word.stop
        placed = self._requests.of(key)
        if placed is not None:
            self._install(record, self._requests.partial[key].start)
            received.effects.append(ContinueRequest(trajectory=key, request=placed.number))

    def _begin_first(self, record: EpisodeRecord) -> None:
        """Begin the first turn of an admitted member, behind what it begins with beside the prompt."""
        key, attempt = record.trajectory, record.attempt
        assert key is not None, "a turn is of a trajectory"
        root = record.branches.setdefault(0, BranchRecord(number=0, prompt=()))
        root.prompt = record.prompt
        self._late += [_once_value(record, once) for once in record.early_onces()]
        rest = record.first_context[len(record.prompt) :]
        if rest:
            self._late.append(Progress(trajectory=key, attempt=attempt, start=0, tokens=rest, version=None))
        root.tokens.extend(rest)
        self._add_turn(record, root, asked_at=0, asked_limit=record.first_limit, stop=record.first_stop)

    def _begin_turn(
        self,
        record: EpisodeRecord,
        branch: BranchRecord | None,
        word: say.TurnAsked,
        at: float,
        received: Received,
    ) -> None:
        """Begin a later turn: where the KV of its branch is held, or behind its whole context."""
        key = record.trajectory
        assert key is not None, "only a first turn is asked for before the group is admitted"
        if branch is None:
            branch = BranchRecord(number=word.branch, prompt=(), is_trained=word.is_trained)
            record.branches[word.branch] = branch
        start, goes_on = len(branch.tokens), record.held == branch.number
        branch.tokens.extend(word.tokens)
        self._add_turn(record, branch, asked_at=start, asked_limit=word.max_tokens, stop=word.stop)
        received.payloads.append(
            Progress(
                trajectory=key,
                attempt=record.attempt,
                branch=branch.number,
                start=start,
                tokens=word.tokens,
                version=None,
                is_trained=branch.is_trained,
            )
        )
        partial = self._requests.partial.get(key)
        if partial is not None:  # In a run that goes on its Start comes yet.
            self._install(record, partial.start)
        received.inputs.append(
            told.EnvironmentReplied(
                at=at,
                trajectory=key,
                tokens=len(word.tokens) if goes_on else 0,
                context=None if goes_on else branch.num_tokens,
            )
        )

    def _add_turn(
        self,
        record: EpisodeRecord,
        branch: BranchRecord,
        *,
        asked_at: int,
        asked_limit: int | None,
        stop: tuple[str, ...],
    ) -> None:
        limit = self._limit(branch.num_tokens, asked_limit)
        turn = TurnRecord(asked_at=asked_at, begin=len(branch.tokens), limit=limit, stop=stop)
        branch.operations.append(turn)
        record.held, record.current = branch.number, turn

    def _limit(self, num_tokens: int, asked_limit: int | None) -> int:
        """Most tokens of a turn behind so many: by the recipe, the episode, and the room that is left."""
        room = self._settings.max_context_tokens - num_tokens
        return min(asked_limit or self._max_new_tokens, self._max_new_tokens, room)

    def _install(self, record: EpisodeRecord, start: do.Start) -> None:
        """Let requests of this trajectory be of the branch whose turn it is."""
        assert record.held is not None, "no turn was begun"
        assert record.trajectory is not None, "a turn that was begun is of a trajectory"
        branch = record.branches[record.held]
        turn = branch.turns[-1]
        assert turn.limit is not None, "a turn whose limit is not known waits for its coroutine"
        in_prompt = 0 if branch.prompt else branch.turns[0].begin
        self._requests.partial[record.trajectory] = PartialTrajectory(
            start=start,
            tokens=branch.tokens,
            episode_turn=EpisodeTurn(
                branch=branch.number,
                prompt=branch.prompt or tuple(branch.tokens[:in_prompt]),
                in_prompt=in_prompt,
                asked_at=turn.asked_at,
                begin=turn.begin,
                limit=turn.limit,
                stop=turn.stop,
                is_over=turn.finish is not None,
            ),
        )

    # --- ended and answered ---------------------------------------------------------------------

    def ended(self, record: EpisodeRecord, finish: TurnFinish) -> Received:
        """Take note of the end of a turn, whose tokens are all known; it is answered once that is durable."""
        key, turn = record.trajectory, record.current
        assert key is not None, "a turn is of a trajectory"
        assert record.held is not None, "no turn was begun"
        assert turn is not None, "no turn is in progress"
        branch = record.branches[record.held]
        turn.end, turn.finish, record.current = len(branch.tokens), finish, None
        number = next(n for n, each in enumerate(branch.operations) if each is turn)
        finished = TurnFinished(trajectory=key, attempt=record.attempt, branch=branch.number, finish=finish)
        answer = AnswerOperation(trajectory=key, branch=branch.number, number=number)
        return Received(payloads=[finished], effects=[answer])

    def answer(self, record: EpisodeRecord, branch_number: int, number: int) -> None:
        """Send what is recorded of an operation to the coroutine, if it runs."""
        if record.number is None:
            return
        branch = record.branches[branch_number]
        match branch.operations[number]:
            case TurnRecord(finish=finish) as turn if finish is not None:
                self._pool.tell(
                    say.TurnTaken(
                        episode=record.number,
                        branch=branch_number,
                        number=number,
                        tokens=branch.drawn(turn),
                        finish=finish,
                    )
                )
            case OnceRecord(value=value):
                self._pool.tell(
                    say.OnceRecorded(episode=record.number, branch=branch_number, number=number, value=value)
                )

    # --- side effects ---------------------------------------------------------------------------

    def once_asked(self, record: EpisodeRecord, word: say.OnceAsked) -> None:
        """Answer with the value that is known, or have the effect run."""
        branch = record.branches.get(word.branch)
        if branch is not None and word.number < len(branch.operations):
            known = branch.operations[word.number]
            if not (isinstance(known, OnceRecord) and known.key == word.key):
                raise EpisodeDiffers(f"operation {word.number} of branch {word.branch} is not what it was")
            self.answer(record, word.branch, word.number)
        else:
            assert record.number is not None, "an episode that asks runs"
            self._pool.tell(say.OnceRun(episode=record.number, branch=word.branch, number=word.number))

    def once_done(self, record: EpisodeRecord, word: say.OnceDone, received: Received) -> None:
        """Record the value of an effect; before the first turn it is journalled when the member starts."""
        prompt = record.prompt if word.branch == 0 else ()
        branch = record.branches.setdefault(word.branch, BranchRecord(number=word.branch, prompt=prompt))
        is_journalled = record.trajectory is not None and record.num_turns > 0
        operation = OnceRecord.of(word.key, word.value, is_journalled=is_journalled)
        if word.key == SNAPSHOT:
            record.snapshot = word.value
        branch.operations.append(operation)
        if record.trajectory is None or not is_journalled:
            # Until then it may run again, as it may after a crash.
            self.answer(record, word.branch, word.number)
            return
        once = EarlyOnce(branch=word.branch, number=word.number, key=word.key, value=word.value)
        received.payloads.append(_once_value(record, once))
        received.effects.append(
            AnswerOperation(trajectory=record.trajectory, branch=word.branch, number=word.number)
        )


def _once_value(record: EpisodeRecord, once: EarlyOnce) -> OnceValue:
    assert record.trajectory is not None, "a value is of a trajectory"
    return OnceValue(
        trajectory=record.trajectory,
        attempt=record.attempt,
        branch=once.branch,
        number=once.number,
        key=once.key,
        value=once.value,
    )
