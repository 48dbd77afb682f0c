"""Episodes between control, journal and their workers, without a process: who is told what, and when."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.recipe import Batch
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.core.stream_key import StreamKey
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes import episode_messages as say
from dora_rl.envs.episodes.snapshot import SNAPSHOT, EpisodeSnapshot
from dora_rl.envs.tokenized_prompts import TokenizedPrompt
from dora_rl.run.episodes.episode_record import EpisodeRecord, OnceRecord
from dora_rl.run.episodes.episode_turns import EpisodeTurns
from dora_rl.run.episodes.host import EpisodeHost, EpisodesFailed
from dora_rl.run.episodes.opened_prompts import OpeningPrompt
from dora_rl.run.episodes.pool import EpisodeLost
from dora_rl.run.received import AnswerOperation, ContinueRequest
from dora_rl.run.request_table import RequestTable
from dora_rl.store.journal_records import (
    EarlyOnce,
    EpisodeContexts,
    JournalledTrajectory,
    JournalledTurn,
    OnceValue,
    Progress,
    Response,
    Rewarded,
    Stretch,
    TurnFinished,
)

from .conftest import MakeSetup

GROUP = 3


class Workers:
    """Stands for the processes of episodes: what they are told is noted, what they say is scripted."""

    def __init__(self) -> None:
        self.told: list[say.EpisodeTold] = []
        self.said: list[Any] = []
        self.ended: list[int] = []

    def begin(self, message: say.BeginEpisode) -> None:
        self.told.append(message)

    def tell(self, message: say.EpisodeTold) -> None:
        self.told.append(message)

    def end(self, episode: int) -> None:
        self.ended.append(episode)

    def words(self) -> list[Any]:
        said, self.said = self.said, []
        return said

    def news(self) -> list[say.EpisodeTold]:
        news, self.told = self.told, []
        return news


class Play:
    """A host with its surroundings, and what a run does around it."""

    def __init__(self, setup: Any, log: Path) -> None:
        row = Row(row=0, prompt="?", columns={})
        self.setup = setup
        self.workers = Workers()
        self.requests = RequestTable()
        workers: Any = self.workers
        prompts: Any = {0: TokenizedPrompt(row=row, token_ids=())}
        self.host = EpisodeHost(setup, prompts, self.requests, workers, log)

    def says(self, *words: Any, at: float = 1.0) -> Any:
        self.workers.said += words
        return self.host.read(at)

    def opened(self, *contexts: tuple[int, ...]) -> None:
        """Open a prompt whose members begin with these contexts, as episodes 0, 1, ..."""
        self.host.open(do.Open(epoch=0, row=0))
        self.workers.news()
        words = [asked(number, tokens=tokens, is_new=True) for number, tokens in enumerate(contexts)]
        received = self.says(*words)
        assert [type(each) for each in received.inputs] == [told.Opened]

    def start(self, member: int = 0, attempt: int = 0) -> do.Start:
        start = start_of(member, attempt)
        assert self.host.started(start)
        self.requests.begin(start)
        return start

    def draws(self, trajectory: int, *tokens: int) -> Any:
        """The engine draws the tokens of a turn, which ends with them."""
        partial = self.requests.partial[trajectory]
        partial.tokens += tokens
        return self.host.turn_ended(trajectory, "stop")


def start_of(member: int, attempt: int = 0) -> do.Start:
    """A Start of a member of the group, whose trajectories are 6 and 7."""
    return do.Start(
        instance=0,
        version=7,
        trajectory=GROUP * 2 + member,
        group=GROUP,
        epoch=0,
        row=0,
        member=member,
        attempt=attempt,
        prompt_tokens=2,
    )


def asked(episode: int, **fields: Any) -> say.TurnAsked:
    return say.TurnAsked(**{"episode": episode, "branch": 0, "number": 0, "is_new": False} | fields)


@pytest.fixture
def play(make_setup: MakeSetup, tmp_path: Path) -> Play:
    return Play(
        make_setup(
            batch=Batch(groups=2, group_size=2),
            episode=EpisodeSettings(function="mine:play", max_turns=3, max_context_tokens=40),
        ),
        tmp_path / "episodes.log",
    )


@pytest.fixture
def running(play: Play) -> Play:
    """Two members, of which the first, trajectory 6 as episode 0, is in its first turn."""
    play.opened((1, 2, 3), (1, 2, 4, 5))
    play.host.prompt_of(do.Admit(group=GROUP, version=7, epoch=0, row=0))
    play.start()
    return play


def test_a_prompt_is_opened_once_all_members_are_reset_and_is_what_they_have_in_common(play: Play) -> None:
    play.host.open(do.Open(epoch=0, row=0))
    assert [each.member for each in play.workers.news() if isinstance(each, say.BeginEpisode)] == [0, 1]
    assert not play.says(asked(0, tokens=(1, 2, 3), is_new=True)).inputs
    received = play.says(asked(1, tokens=(1, 2, 4, 5), is_new=True))
    assert received.inputs == [told.Opened(at=1.0, epoch=0, row=0, tokens=2)]
    assert received.payloads[0].contexts == ((1, 2, 3), (1, 2, 4, 5))
    assert play.host.prompt_of(do.Admit(group=GROUP, version=7, epoch=0, row=0)) == (1, 2)


def test_what_a_role_said_before_the_first_turn_is_kept_with_the_contexts_and_known_again(play: Play) -> None:
    play.host.open(do.Open(epoch=0, row=0))
    said = say.OnceDone(episode=0, branch=77, number=0, key="role user", value=b"hi")
    words = [asked(0, tokens=(1, 2, 3), is_new=True), asked(1, tokens=(1, 2, 4), is_new=True)]
    received = play.says(said, *words)
    (opened,) = (each for each in received.payloads if isinstance(each, EpisodeContexts))
    early = EarlyOnce(branch=77, number=0, key="role user", value=b"hi")
    assert opened.onces == ((early,), ())

    # In a run that goes on the coroutine asks again, and is answered from there.
    members = [EpisodeRecord(epoch=0, row=0, member=member, is_evaluation=False) for member in range(2)]
    opening = OpeningPrompt(key=(False, 0, 0), members=members)
    opening.recall(opened)
    assert opening.prompt == (1, 2)
    members[0].number = 5
    turns = EpisodeTurns(play.setup, play.requests, play.workers)  # type: ignore[arg-type]
    play.workers.news()
    turns.once_asked(members[0], say.OnceAsked(episode=5, branch=77, number=0, key="role user"))
    assert play.workers.news() == [say.OnceRecorded(episode=5, branch=77, number=0, value=b"hi")]

    # It is journalled with the first turn, once its member has a trajectory.
    play.workers.ended.clear()
    play.host.prompt_of(do.Admit(group=GROUP, version=7, epoch=0, row=0))
    play.start()
    onces = [each for each in play.says().payloads if isinstance(each, OnceValue)]
    assert [(each.trajectory, each.branch, each.number) for each in onces] == [(6, 77, 0)]


def test_a_branch_with_side_effects_alone_is_recalled(play: Play) -> None:
    once = OnceValue(trajectory=6, attempt=0, branch=77, number=0, key="role user", value=b"hi")
    record = EpisodeRecord(epoch=0, row=0, member=0, is_evaluation=False, trajectory=6, prompt=(1, 2))
    record.recall(
        JournalledTrajectory(
            trajectory=6, group=GROUP, key=StreamKey(seed=0, epoch=0, row=0), version=7, prompt=(1, 2),
            response=Response(), is_truncated=False, is_evaluation=False, onces=(once,),
        )
    )  # fmt: skip
    assert [type(each).__name__ for each in record.branches[77].operations] == ["OnceRecord"]
    assert record.num_turns == 0


def test_a_member_that_is_one_too_many_ends_with_its_environment_and_nothing_more_is_heard(
    running: Play,
) -> None:
    running.host.cut(do.Cut(trajectory=6, reason="deadline"))
    running.host.forget(6)
    assert running.workers.ended == [0], "its process is told to close the environment"
    received = running.says(asked(0, number=1, tokens=(9,)), say.EpisodeDone(episode=0, reward=1.0))
    assert not received.inputs
    assert not [each for each in received.payloads if isinstance(each, Rewarded)]


def test_what_a_member_begins_with_behind_the_prompt_is_its_environments(running: Play) -> None:
    partial = running.requests.partial[6]
    assert partial.tokens == [3]
    assert partial.episode_turn is not None
    assert partial.episode_turn.prompt == (1, 2)
    first = Progress(trajectory=6, attempt=0, start=0, tokens=(3,), version=None)
    assert running.host.read(1.0).payloads == [first]


def test_a_turn_is_answered_once_it_is_durable_and_the_next_one_extends_it(running: Play) -> None:
    received = running.draws(6, 8, 9)
    assert received.payloads == [TurnFinished(trajectory=6, attempt=0, branch=0, finish="stop")]
    assert not running.workers.news()
    (effect,) = received.effects
    running.host.answer(effect)
    assert running.workers.news() == [
        say.TurnTaken(episode=0, branch=0, number=0, tokens=(8, 9), finish="stop")
    ]

    running.host.read(1.0)
    received = running.says(asked(0, number=1, tokens=(10,)))
    assert received.inputs == [told.EnvironmentReplied(at=1.0, trajectory=6, tokens=1)]
    assert received.payloads == [Progress(trajectory=6, attempt=0, start=3, tokens=(10,), version=None)]
    assert running.requests.partial[6].tokens == [3, 8, 9, 10]


def test_another_branch_starts_behind_its_own_context(running: Play) -> None:
    running.draws(6, 8)
    running.host.read(1.0)
    received = running.says(asked(0, branch=77, tokens=(1, 5, 6), is_new=True, is_trained=False))
    assert received.inputs == [told.EnvironmentReplied(at=1.0, trajectory=6, tokens=0, context=3)]
    turn = running.requests.partial[6].episode_turn
    assert turn is not None
    assert (turn.branch, turn.prompt, turn.in_prompt) == (77, (1, 5, 6), 3)
    running.draws(6, 9)
    # Back to the root, whose KV is not what is held.
    received = running.says(asked(0, number=1, tokens=(10,)))
    assert received.inputs == [told.EnvironmentReplied(at=1.0, trajectory=6, tokens=0, context=5)]


def test_an_episode_that_begins_again_is_answered_from_what_is_recorded(running: Play) -> None:
    (effect,) = running.draws(6, 8, 9).effects
    running.host.answer(effect)
    running.workers.news()
    running.says(EpisodeLost(episode=0, reason="killed"))
    (begun,) = running.workers.news()
    assert isinstance(begun, say.BeginEpisode)
    assert (begun.member, begun.attempt) == (0, 0)
    received = running.says(asked(begun.episode, tokens=(1, 2, 3), is_new=True))
    assert not received.inputs
    assert running.workers.news() == [
        say.TurnTaken(episode=begun.episode, branch=0, number=0, tokens=(8, 9), finish="stop")
    ]


def test_an_episode_that_asks_otherwise_than_before_has_failed(running: Play) -> None:
    running.draws(6, 8, 9)
    running.says(EpisodeLost(episode=0, reason="killed"))
    received = running.says(asked(2, tokens=(1, 2, 99), is_new=True))
    (failed,) = received.inputs
    assert isinstance(failed, told.EnvironmentFailed)
    assert "operation 0 of branch 0 is not what it was" in failed.reason
    # Of the next attempt nothing is known, and its first turn is told to control.
    running.workers.news()
    running.host.reopen(do.Reopen(trajectory=6, attempt=1))
    (begun,) = running.workers.news()
    assert isinstance(begun, say.BeginEpisode)
    assert begun.attempt == 1
    running.requests.forget(6)
    received = running.says(asked(begun.episode, tokens=(1, 2, 3, 4), is_new=True))
    assert received.inputs == [told.EnvironmentReplied(at=1.0, trajectory=6, tokens=0, context=4)]
    running.start(attempt=1)
    assert running.requests.partial[6].tokens == [3, 4]


@pytest.mark.parametrize(("turns", "num_tokens", "finish"), [(3, 1, "turns"), (1, 40, "context")])
def test_an_episode_that_is_too_long_gets_no_further_turn(
    running: Play, turns: int, num_tokens: int, finish: str
) -> None:
    running.host.read(1.0)
    for number in range(1, turns):
        running.draws(6, 8)
        assert running.says(asked(0, number=number, tokens=(10,))).inputs
    running.draws(6, 8)
    running.workers.news()
    received = running.says(asked(0, number=turns, tokens=(10,) * num_tokens))
    assert not received.inputs
    (refused,) = running.workers.news()
    assert isinstance(refused, say.TurnTaken)
    assert (refused.finish, refused.tokens) == (finish, ())


def test_an_end_has_the_reward_and_those_of_its_turns(running: Play) -> None:
    running.host.read(1.0)
    running.draws(6, 8, 9)
    running.says(asked(0, number=1, tokens=(10,), reward=0.25))
    running.draws(6, 11)
    received = running.says(
        say.EpisodeDone(episode=0, reward=1.25, last_rewards={0: 0.5}, values={"wins": 1.0})
    )
    assert received.inputs == [
        told.EpisodeEnded(at=1.0, trajectory=6, tokens=3),
        told.Scored(at=1.0, trajectory=6, reward=1.25, values={"wins": 1.0}),
    ]
    rewarded = next(each for each in received.payloads if isinstance(each, Rewarded))
    assert [(each.branch, each.turn, each.reward) for each in rewarded.turns] == [(0, 0, 0.25), (0, 1, 0.5)]
    assert running.workers.ended == [0]
    assert 6 not in running.requests.partial


def test_a_cut_episode_ends_with_the_rewards_it_has(running: Play) -> None:
    running.host.read(1.0)
    running.draws(6, 8)
    running.says(asked(0, number=1, tokens=(10,), reward=0.25))
    running.draws(6, 9)
    running.host.cut(do.Cut(trajectory=6, reason="deadline"))
    assert running.workers.ended == [0]
    ended, scored = running.host.read(1.0).inputs
    assert isinstance(ended, told.EpisodeEnded)
    assert ended.truncated
    assert isinstance(scored, told.Scored)
    assert scored.reward == 0.25


def test_a_side_effect_is_run_once_and_known_once_it_is_durable(running: Play) -> None:
    running.host.read(1.0)
    running.draws(6, 8)
    running.workers.news()
    running.says(say.OnceAsked(episode=0, branch=0, number=1, key="buy"))
    assert running.workers.news() == [say.OnceRun(episode=0, branch=0, number=1)]
    received = running.says(say.OnceDone(episode=0, branch=0, number=1, key="buy", value=b"x"))
    assert received.payloads == [
        OnceValue(trajectory=6, attempt=0, branch=0, number=1, key="buy", value=b"x")
    ]
    assert received.effects == [AnswerOperation(trajectory=6, branch=0, number=1)]
    assert not running.workers.news()
    running.says(EpisodeLost(episode=0, reason="killed"))
    running.workers.news()
    running.says(say.OnceAsked(episode=2, branch=0, number=1, key="buy"))
    assert running.workers.news() == [say.OnceRecorded(episode=2, branch=0, number=1, value=b"x")]


def _snapshot(place: int, **fields: Any) -> bytes:
    given: dict[str, Any] = {
        "state": b"s",
        "place": place,
        "number": 0,
        "ids": (1, 2, 3, 8),
        "messages": [],
        "tools": (),
        "is_trained": True,
        "num_operations": 2,
        "num_children": 0,
        "opened": [0],
        "total": None,
        "last_rewards": {},
        "told_rewards": [],
        "values": {},
        "rng": (3, (), None),
        "task_rng": (3, (), None),
    }
    return msgspec.msgpack.encode(EpisodeSnapshot(**given | fields))


def test_an_episode_goes_on_from_its_newest_snapshot(running: Play) -> None:
    running.host.read(1.0)
    running.draws(6, 8)
    running.workers.news()
    value = _snapshot(1)
    received = running.says(say.OnceDone(episode=0, branch=0, number=1, key=SNAPSHOT, value=value))
    assert received.payloads == [
        OnceValue(trajectory=6, attempt=0, branch=0, number=1, key=SNAPSHOT, value=value)
    ]
    (effect,) = received.effects
    running.host.answer(effect)
    # Nobody needs the value as an answer.
    assert running.workers.news() == [say.OnceRecorded(episode=0, branch=0, number=1, value=b"")]
    running.says(EpisodeLost(episode=0, reason="killed"))
    (begun,) = running.workers.news()
    assert isinstance(begun, say.BeginEpisode)
    assert begun.snapshot == value
    # What comes behind it is asked for as ever; the next attempt begins at the beginning.
    received = running.says(asked(begun.episode, number=2, tokens=(4, 5), reward=0.5))
    assert [type(each) for each in received.inputs] == [told.EnvironmentReplied]
    running.host.reopen(do.Reopen(trajectory=6, attempt=1))
    assert [each.snapshot for each in running.workers.news() if isinstance(each, say.BeginEpisode)] == [None]


def test_a_resumed_run_has_the_newest_snapshot_and_the_rewards_before_it() -> None:
    stretches = [Stretch(start=start, version=None if start % 2 == 0 else 7) for start in range(4)]
    response = Response(tokens=(3, 8, 4, 9), logprobs=(0.0, 0.0), stretches=tuple(stretches))
    values = [_snapshot(2, told_rewards=[(0, 2, 0.5)]), _snapshot(1)]
    before = JournalledTrajectory(
        trajectory=6,
        group=GROUP,
        version=7,
        key=StreamKey(seed=0),
        prompt=(1, 2),
        response=response,
        is_truncated=False,
        is_evaluation=False,
        turns=(JournalledTurn(finish="stop", order=1), JournalledTurn(finish="stop", order=2)),
        onces=tuple(
            OnceValue(trajectory=6, attempt=0, branch=0, number=number, key=SNAPSHOT, value=value)
            for number, value in zip((1, 3), reversed(values), strict=True)
        ),
    )
    record = EpisodeRecord(epoch=0, row=0, member=0, is_evaluation=False, trajectory=6, prompt=(1, 2))
    record.recall(before)
    assert record.snapshot == values[0]
    assert record.rewards == [0.5]
    assert [each.value for each in record.branches[0].operations if isinstance(each, OnceRecord)] == [
        b"",
        b"",
    ]


def test_an_environment_that_fails_to_start_is_tried_again_and_then_given_up(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dora_rl.run.episodes.host._RETRY_S", 0.0)
    play.host.open(do.Open(epoch=0, row=0))
    play.workers.news()
    for episode in (0, 2):
        assert not play.says(say.EpisodeBroken(episode=episode, reason="raised", detail="no room")).inputs
        (begun,) = play.workers.news()
        assert isinstance(begun, say.BeginEpisode)
        assert begun.member == 0
    received = play.says(say.EpisodeBroken(episode=3, reason="raised", detail="no room"))
    assert received.inputs == [told.OpenFailed(at=1.0, epoch=0, row=0, reason="raised: no room")]
    assert 1 in play.workers.ended


def test_a_run_in_which_every_episode_fails_ends(play: Play) -> None:
    for number in range(4):
        play.host.open(do.Open(epoch=0, row=0))
        play.says(say.EpisodeBroken(episode=2 * number, reason="raised", detail="KeyError: 'door'"))
    with pytest.raises(EpisodesFailed, match="4 episodes failed in a row, the last one: raised: KeyError"):
        play.host.check()


def test_what_one_dead_process_took_with_it_is_one_failure(play: Play) -> None:
    lost = say.EpisodeBroken(episode=0, reason="process died", detail="episodes 0 exited with -9")
    for number in range(8):
        play.host.open(do.Open(epoch=0, row=0))
        play.says(msgspec.structs.replace(lost, episode=2 * number))
    play.host.check()
    for number in range(8, 11):
        play.host.open(do.Open(epoch=0, row=0))
        play.says(msgspec.structs.replace(lost, episode=2 * number), at=number)
    with pytest.raises(EpisodesFailed, match="4 episodes failed in a row, the last one: process died"):
        play.host.check()


def test_a_request_that_started_before_its_first_turn_was_known_goes_on_when_it_is(running: Play) -> None:
    start = start_of(member=1, attempt=1)
    running.host.reopen(do.Reopen(trajectory=7, attempt=1))
    assert not running.host.started(start)
    placed = running.requests.begin(start)
    received = running.says(asked(2, tokens=(1, 2, 9), is_new=True))
    assert received.effects == [ContinueRequest(trajectory=7, request=placed.number)]
    assert received.payloads[-1] == Progress(trajectory=7, attempt=1, start=0, tokens=(9,), version=None)


def test_a_start_of_a_later_attempt_begins_the_episode_anew(running: Play) -> None:
    running.draws(6, 8, 9)
    running.workers.news()
    start = start_of(member=0, attempt=1)
    assert not running.host.started(start)
    (begun,) = running.workers.news()
    assert isinstance(begun, say.BeginEpisode)
    assert begun.attempt == 1
    placed = running.requests.begin(start)
    received = running.says(asked(begun.episode, tokens=(1, 2, 3), is_new=True))
    assert received.effects == [ContinueRequest(trajectory=6, request=placed.number)]
    assert running.requests.partial[6].tokens == [3]


def test_a_side_effect_before_the_first_turn_is_journalled_once_also_in_a_resumed_run(play: Play) -> None:
    value = OnceValue(trajectory=6, attempt=0, branch=0, number=0, key="seat", value=b"4")
    before = JournalledTrajectory(
        trajectory=6,
        group=GROUP,
        version=7,
        key=StreamKey(seed=0),
        prompt=(1, 2),
        response=Response(),
        is_truncated=False,
        is_evaluation=False,
        onces=(value,),
    )
    record = EpisodeRecord(epoch=0, row=0, member=0, is_evaluation=False, trajectory=6, prompt=(1, 2))
    record.recall(before)
    turns = EpisodeTurns(play.setup, play.requests, play.host._pool)
    record.number = 0
    turns.once_asked(record, say.OnceAsked(episode=0, branch=0, number=0, key="seat"))
    assert play.workers.news() == [say.OnceRecorded(episode=0, branch=0, number=0, value=b"4")]
    record.first_context = (1, 2, 3)
    assert turns.start(record, start_of(member=0))
    assert turns.late_payloads() == [Progress(trajectory=6, attempt=0, start=0, tokens=(3,), version=None)]
