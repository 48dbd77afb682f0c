"""Snapshots: an episode that goes on from one plays as one that was never interrupted."""

import asyncio
import json
from typing import Any

import pytest

from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.blocking_chat import BlockingChat
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.episode_messages import EpisodeDone, OnceDone, TurnAsked
from dora_rl.envs.episodes.snapshot import SNAPSHOT, EpisodeSnapshot, read_snapshot

from .scripted_run import ScriptedRun, begin, play

TURNS = 5


def tool(x: int) -> int:
    """Does something."""
    return x


class Game:
    """An environment that can give its state, and notes how many steps it really took."""

    steps = 0

    def __init__(self, state: bytes | None) -> None:
        self.said: list[str] = json.loads(state) if state else []

    def step(self, text: str, luck: int) -> None:
        Game.steps += 1
        self.said.append(f"{text}/{luck}")


async def saved(chat: Chat, row: Row) -> float:
    """Turns with rewards, randomness, tools that change, a fork and a side effect; saved after each."""
    game = Game(chat.restored)
    while len(game.said) < TURNS:
        number = len(game.said)
        tools = {0: [], 3: [tool]}.get(number)
        turn = await chat.turn(f"seen {game.said[-1:]} {chat.task_rng.random():.4f}", tools=tools)
        game.step(turn.text, chat.rng.randint(0, 99))
        chat.reward(number + 1)
        chat.log_metric("luck", chat.rng.random())
        if number == 1:
            await chat.fork().turn("aside")
            await chat.once("note", lambda key: "noted")
        await chat.snapshot(json.dumps(game.said).encode())
    return float(len(set(game.said)))


def _begun_again(whole: ScriptedRun, num_said: int) -> tuple[EpisodeDone, ScriptedRun, bytes | None]:
    """The end of an episode that was killed after it had said so much, and that a journal is there of."""
    again, newest, place = ScriptedRun(), None, 0
    for word in whole.said[:num_said]:
        if isinstance(word, TurnAsked):
            again.taken[word.branch, word.number] = whole.taken[word.branch, word.number]
        elif isinstance(word, OnceDone):
            again.once[word.branch, word.number] = word.value
            if word.key == SNAPSHOT and read_snapshot(word.value).place > place:
                newest, place = word.value, read_snapshot(word.value).place
    if newest is not None:
        snapshot = read_snapshot(newest)
        again.contexts[9, snapshot.number] = list(snapshot.ids)

    async def played() -> Any:
        runner = again.runner(saved)
        runner.tell(begin(9, snapshot=newest))
        return await again.end_of(9)

    return asyncio.run(played()), again, newest


def _last_snapshot(run: ScriptedRun, begun_with: bytes | None) -> EpisodeSnapshot:
    taken = [word.value for word in run.said if isinstance(word, OnceDone) and word.key == SNAPSHOT]
    value = taken[-1] if taken else begun_with
    assert value is not None
    return read_snapshot(value)


def test_whenever_it_is_killed_it_ends_as_if_it_had_not_been() -> None:
    end, whole = play(saved)
    assert isinstance(end, EpisodeDone), end
    assert end.reward == sum(range(1, TURNS + 1)) + TURNS
    assert len({word.branch for word in whole.asked()}) == 3, "the root, the fork, the branch with tools"
    for num_said in range(len(whole.said)):
        Game.steps = 0
        again_end, again, newest = _begun_again(whole, num_said)
        for each in ("reward", "last_rewards", "values", "is_truncated"):
            assert getattr(again_end, each) == getattr(end, each), (num_said, each)
        saved_turns = 0 if newest is None else len(json.loads(read_snapshot(newest).state))
        # What was saved is not played again, and what was asked before is asked with the same tokens.
        assert Game.steps == TURNS - saved_turns
        behind = {(word.branch, word.number): word for word in whole.asked()}
        for word in again.asked():
            before = behind[word.branch, word.number]
            assert (word.tokens, word.reward, word.is_new) == (before.tokens, before.reward, before.is_new)
        assert _last_snapshot(again, newest) == _last_snapshot(whole, None)
        if newest is not None:
            told = read_snapshot(newest).told_rewards
            known = [(w.branch, w.number, w.reward) for w in whole.asked() if w.reward is not None]
            asked = [(w.branch, w.number, w.reward) for w in again.asked() if w.reward is not None]
            assert told + asked == known


def test_an_episode_that_blocks_has_them_too() -> None:
    def blocking(chat: BlockingChat, row: Row) -> float:
        assert chat.restored is None
        chat.turn("one")
        chat.snapshot(b"state")
        return 1.0

    end, run = play(blocking)
    assert isinstance(end, EpisodeDone), end
    (value,) = run.once.values()
    assert read_snapshot(value).state == b"state"


@pytest.mark.parametrize(
    ("misused", "reason"),
    [
        ("before", "after a turn"),
        ("fork", "of the episode's own chat"),
        ("beside", "another chat of the episode waits"),
        ("large", "too large"),
    ],
)
def test_where_it_could_not_be_restored_it_is_refused(misused: str, reason: str) -> None:
    async def episode(chat: Chat, row: Row) -> float:
        if misused == "before":
            await chat.snapshot(b"")
        await chat.turn("one")
        if misused == "fork":
            await chat.fork().snapshot(b"")
        if misused == "beside":
            beside = asyncio.ensure_future(chat.fork().turn("two"))
            await asyncio.sleep(0)
            try:
                await chat.snapshot(b"")
            finally:
                await beside
        await chat.snapshot(bytes(17 << 20))
        return 1.0

    end, _ = play(episode)
    assert reason in end.detail
