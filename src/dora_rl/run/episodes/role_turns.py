"""Turns of roles that a frozen version plays: asked of control, and what was said given to the episodes.

RoleAsked ──> RoleTurnAsked ──> Start(question=...) ──> AnswerRole ──> RoleSaid ──> OnceDone, journalled

Nothing of a turn is journalled before the episode makes it the value of its side effect. So whoever begins an
episode again lets go of what it awaited: the same is asked again, and drawn again from the same key.
"""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from dora_rl.control.plane import ControlPlane
from dora_rl.control.schedules import make_schedule
from dora_rl.core import inputs as told
from dora_rl.core.inputs import Input
from dora_rl.core.stream_key import StreamKey
from dora_rl.core.turn_finish import TurnFinish
from dora_rl.envs.episodes import episode_messages as say
from dora_rl.run.episodes.episode_record import EpisodeRecord
from dora_rl.run.received import AnswerRole, Received
from dora_rl.run.request_table import RequestTable, RoleTurn
from dora_rl.run.run_setup import RunSetup

_INITIAL = 0
"""The version that the initial model is."""


class _Awaited(Struct, frozen=True, kw_only=True):
    """Who awaits the turn of a role, and what it is."""

    asked: say.RoleAsked
    turn: RoleTurn


class RoleTurns:
    """The turns of roles that episodes await, by the numbers that control knows them by."""

    def __init__(self, setup: RunSetup, requests: RequestTable, tell: Callable[[say.RoleSaid], None]) -> None:
        """`tell` gives an episode what its role said."""
        episode = setup.recipe.episode
        assert episode is not None, "a run without episodes has no roles"
        self._setup = setup
        self._max_context_tokens = episode.max_context_tokens
        self._max_staleness = make_schedule(setup.recipe.control, setup.recipe.batch).max_staleness
        self._requests = requests
        self._tell = tell
        self._awaited: dict[int, _Awaited] = {}
        self._next = 0
        self._dropped: list[int] = []

    def asked(self, record: EpisodeRecord, word: say.RoleAsked, at: float, received: Received) -> None:
        """Ask control for the turn of a role; refuse one whose conversation is full."""
        room = self._max_context_tokens - len(word.tokens)
        if room <= 0:
            self._answer(word, (), "context")
            return
        question, self._next = self._next, self._next + 1
        self._awaited[question] = _Awaited(
            asked=word, turn=self._turn(record, word, question, min(word.max_tokens, room))
        )
        received.inputs.append(
            told.RoleTurnAsked(
                at=at,
                question=question,
                version=_INITIAL,
                tokens=len(word.tokens),
                trajectory=record.trajectory,
            )
        )

    def _turn(self, record: EpisodeRecord, word: say.RoleAsked, question: int, limit: int) -> RoleTurn:
        recipe = self._setup.recipe
        sampling = (recipe.roles or {})[word.role].sampling or recipe.sampling
        waiting = self._requests.partial.get(record.trajectory) if record.trajectory is not None else None
        return RoleTurn(
            question=question,
            prompt=word.tokens,
            key=StreamKey(
                seed=recipe.seed,
                epoch=record.epoch,
                row=record.row,
                member=record.member,
                attempt=record.attempt,
                branch=word.branch,
            ),
            limit=limit,
            sampling=sampling,
            # Before its group is admitted nobody has to be in time.
            deadline=(recipe.steps if waiting is None else waiting.start.version) + self._max_staleness,
        )

    def turn(self, question: int) -> RoleTurn | None:
        """The turn of a role; None if nobody awaits it any more."""
        awaited = self._awaited.get(question)
        return None if awaited is None else awaited.turn

    def said(self, effect: AnswerRole) -> None:
        """Let the episode have what its role said."""
        awaited = self._awaited.pop(effect.question, None)
        if awaited is not None:
            self._answer(awaited.asked, effect.tokens, effect.finish)

    def refused(self, question: int, reason: str) -> None:
        """Let the episode know that an engine cannot carry the turn out."""
        awaited = self._awaited.pop(question, None)
        if awaited is not None:
            self._dropped.append(question)
            self._answer(awaited.asked, (), "stop", problem=reason)

    def let_go(self, episode: int) -> None:
        """Await nothing for an episode any more: it is over, or begins again."""
        gone = [number for number, each in self._awaited.items() if each.asked.episode == episode]
        for question in gone:
            del self._awaited[question]
        self._dropped += gone

    def dropped(self, at: float) -> list[Input]:
        """What control is to be told about turns that nobody awaits any more."""
        dropped, self._dropped = self._dropped, []
        return [told.RoleTurnDropped(at=at, question=question) for question in dropped]

    def take_up(self, plane: ControlPlane, at: float) -> list[Input]:
        """Let go of all turns that were awaited when the run was cut short: they are asked for again."""
        left = [group.question for group in plane.ledger.roles.values() if group.question is not None]
        # Numbers of what control may still hear of are not given again.
        self._next = max(left, default=-1) + 1
        return [told.RoleTurnDropped(at=at, question=question) for question in left]

    def _answer(
        self,
        asked: say.RoleAsked,
        tokens: tuple[int, ...],
        finish: TurnFinish | Literal["context"],
        *,
        problem: str | None = None,
    ) -> None:
        self._tell(
            say.RoleSaid(
                episode=asked.episode,
                branch=asked.branch,
                number=asked.number,
                tokens=tokens,
                finish=finish,
                problem=problem,
            )
        )
