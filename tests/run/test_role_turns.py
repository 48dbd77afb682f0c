"""Turns of roles between episodes and control: asked, said, refused, let go."""

from typing import Any

import pytest

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.recipe.episodes import EpisodeSettings, RoleSettings
from dora_rl.core.recipe.generation import Sampling
from dora_rl.envs.episodes import episode_messages as say
from dora_rl.run.episodes.episode_record import EpisodeRecord
from dora_rl.run.episodes.role_turns import RoleTurns
from dora_rl.run.received import AnswerRole, Received
from dora_rl.run.request_table import PartialTrajectory, RequestTable

from .conftest import MakeSetup

RECORD = EpisodeRecord(epoch=2, row=7, member=1, is_evaluation=False, attempt=3, trajectory=4)
START = do.Start(
    instance=0, version=5, trajectory=4, group=1, epoch=2, row=7, member=1, attempt=3, prompt_tokens=2
)


def asked(episode: int = 9, *, branch: int = 77, tokens: int = 3, max_tokens: int = 50) -> say.RoleAsked:
    return say.RoleAsked(
        episode=episode, branch=branch, number=0, role="user", tokens=(5,) * tokens, max_tokens=max_tokens
    )


@pytest.fixture
def said() -> list[say.RoleSaid]:
    return []


@pytest.fixture
def roles(make_setup: MakeSetup, said: list[say.RoleSaid]) -> RoleTurns:
    setup = make_setup(
        episode=EpisodeSettings(function="play.py:play", max_context_tokens=40),
        roles={"user": RoleSettings(version="initial", sampling=Sampling(temperature=0.5))},
        rewards=(),
    )
    table = RequestTable([PartialTrajectory(start=START)])
    return RoleTurns(setup, table, said.append)


def ask(roles: RoleTurns, word: say.RoleAsked, record: EpisodeRecord = RECORD) -> list[Any]:
    received = Received()
    roles.asked(record, word, 1.5, received)
    assert not received.payloads, "nothing of it is journalled"
    return received.inputs


def test_a_turn_is_asked_of_version_0_and_due_when_the_one_who_waits_is(roles: RoleTurns) -> None:
    (heard,) = ask(roles, asked())
    assert heard == told.RoleTurnAsked(at=1.5, question=0, version=0, tokens=3, trajectory=4)
    turn = roles.turn(0)
    assert turn is not None
    key = turn.key
    assert (key.epoch, key.row, key.member, key.attempt, key.branch) == (2, 7, 1, 3, 77)
    assert turn.deadline == 5 + roles._max_staleness, "of the waiting group's version, not of version 0"
    assert turn.sampling == Sampling(temperature=0.5)
    assert turn.limit == 37, "what its context has room for"


def test_what_was_said_is_told_once_to_who_awaits_it(roles: RoleTurns, said: list[say.RoleSaid]) -> None:
    ask(roles, asked(episode=9))
    ask(roles, asked(episode=10))
    for _ in range(2):
        roles.said(AnswerRole(question=1, tokens=(8, 9), finish="length"))
    assert said == [say.RoleSaid(episode=10, branch=77, number=0, tokens=(8, 9), finish="length")]
    assert roles.turn(0) is not None
    assert roles.turn(1) is None
    assert roles.dropped(2.0) == []


def test_a_conversation_that_is_full_is_not_asked_of_control(
    roles: RoleTurns, said: list[say.RoleSaid]
) -> None:
    assert ask(roles, asked(tokens=40)) == []
    assert said[0].finish == "context"


def test_who_is_over_awaits_nothing_and_control_hears_of_it_once(
    roles: RoleTurns, said: list[say.RoleSaid]
) -> None:
    ask(roles, asked(episode=9))
    ask(roles, asked(episode=10))
    roles.let_go(9)
    assert roles.dropped(2.0) == [told.RoleTurnDropped(at=2.0, question=0)]
    assert roles.dropped(3.0) == []
    roles.said(AnswerRole(question=0, tokens=(8,), finish="stop"))
    assert said == []


def test_what_an_engine_refuses_is_told_and_dropped(roles: RoleTurns, said: list[say.RoleSaid]) -> None:
    ask(roles, asked())
    roles.refused(0, "no such token")
    assert said[0].problem == "no such token"
    assert roles.dropped(2.0) == [told.RoleTurnDropped(at=2.0, question=0)]
