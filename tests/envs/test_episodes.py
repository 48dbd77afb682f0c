"""Episodes in one loop: what they ask for, in which branches, and how each ends."""

import asyncio
import threading
import time
from typing import Any

import pytest

from dora_rl.core.errors import UserError
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.blocking_chat import BlockingChat
from dora_rl.envs.episodes.branch import child_number
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.episode_function import episode_function
from dora_rl.envs.episodes.episode_messages import (
    EndEpisode,
    EpisodeBroken,
    EpisodeDone,
    EpisodeStuck,
    OnceAsked,
    OnceDone,
    TurnAsked,
    TurnTaken,
)
from dora_rl.envs.episodes.limits import EpisodeLimits
from dora_rl.envs.episodes.turn import EpisodeTruncated

from .scripted_run import STOP, ScriptedRun, begin, counting, play, text


async def two_turns(chat: Chat, row: Row) -> float:
    first = await chat.turn("one")
    second = await chat.turn(f"you said {first.text}", {"role": "user", "content": "and?"})
    return float(second.text) + 0.5


class TestTurns:
    def test_a_turn_appends_what_is_new_and_renders_nothing_again(self) -> None:
        end, run = play(two_turns, lambda context: f" {counting(context)} ")
        assert end == EpisodeDone(episode=0, reward=1.5)
        first, second = run.asked()
        assert (first.is_new, second.is_new) == (True, False)
        assert (first.branch, second.branch, first.number, second.number) == (0, 0, 0, 1)
        assert text(first.tokens) == "[user]one[assistant]"
        assert text(second.tokens) == "[user]you said  0 [user]and?[assistant]"

    def test_a_first_turn_to_which_nothing_is_said_is_the_rows_prompt(self) -> None:
        async def asks(chat: Chat, row: Row) -> float:
            turn = await chat.turn(max_tokens=5)
            assert (turn.finish, text(turn.tokens), turn.message["content"]) == ("stop", f"0{STOP}", "0")
            with pytest.raises(ValueError, match="nothing is said"):
                await chat.turn()
            return float(row.columns["answer"])

        end, run = play(asks)
        assert end.reward == 42.0
        (only,) = run.asked()
        assert text(only.tokens) == "[user]What is six times seven?[assistant]"
        assert only.max_tokens == 5

    def test_a_blocking_function_and_an_object_ask_as_a_coroutine_does(self) -> None:
        def blocking(chat: BlockingChat, row: Row) -> float:
            assert threading.current_thread() is not threading.main_thread()
            first = chat.turn("one")
            second = chat.turn(f"you said {first.text}", {"role": "user", "content": "and?"})
            return float(second.text) + 0.5

        class Made:
            async def __call__(self, chat: Chat, row: Row) -> float:
                return await two_turns(chat, row)

        (end, run), *others = [play(each) for each in (two_turns, blocking, Made)]
        assert all((other.reward, script.said) == (end.reward, run.said) for other, script in others)

    def test_rewards_of_turns_are_said_with_the_next_and_add_up(self) -> None:
        async def rewarded(chat: Chat) -> float:
            with pytest.raises(RuntimeError, match="has taken none"):
                chat.reward(1.0)
            await chat.turn("a")
            chat.reward(0.25)
            chat.reward(0.25)
            await chat.turn("b")
            await chat.turn("c")
            chat.reward(2)
            chat.log_metric("hits", 3)
            return 1.0

        end, run = play(rewarded)
        assert [asked.reward for asked in run.asked()] == [None, 0.5, None]
        assert end == EpisodeDone(episode=0, reward=3.5, last_rewards={0: 2.0}, values={"hits": 3.0})

    def test_an_episode_that_returns_nothing_has_what_its_turns_were_given(self) -> None:
        async def nothing(chat: Chat) -> None:
            await chat.turn("a")

        async def rewarded(chat: Chat) -> None:
            await chat.turn("a")
            chat.reward(0.0)

        assert play(nothing)[0].reward is None
        assert play(rewarded)[0].reward == 0.0

    def test_a_chat_takes_one_turn_at_a_time(self) -> None:
        async def both(chat: Chat) -> None:
            await asyncio.gather(chat.turn("a"), chat.turn("b"))

        end, _ = play(both)
        assert end.reason == "raised"
        assert "fork it" in end.detail


class TestBranches:
    def test_branches_that_race_have_the_same_numbers_whoever_is_first(self) -> None:
        async def racing(chat: Chat) -> float:
            await chat.turn("begin")
            forks = [chat.fork() for _ in range(4)]

            async def one(place: int, fork: Chat) -> float:
                await asyncio.sleep(0.001 * chat.rng.random())
                await fork.turn(f"way {place}")
                deeper = fork.fork()
                return float((await deeper.turn("deeper")).text)

            return sum(await asyncio.gather(*(one(place, fork) for place, fork in enumerate(forks))))

        def asked(delays: list[float]) -> dict[tuple[int, int], str]:
            waits = iter(delays)
            run = ScriptedRun(delay_s=lambda word: next(waits))
            end, _ = play(racing, run=run)
            assert end.reward == 8.0
            return {(word.branch, word.number): text(word.tokens) for word in run.asked()}

        slow_first = asked([0.01 * n for n in range(9)])
        assert asked([0.01 * n for n in range(9, 0, -1)]) == slow_first
        children = [child_number(0, place) for place in range(4)]
        assert set(slow_first) == {
            (0, 0),
            *((n, 0) for n in children),
            *((child_number(n, 0), 0) for n in children),
        }
        assert slow_first[children[1], 0] == f"[user]begin[assistant]0{STOP}[user]way 1[assistant]"

    def test_an_episode_asks_for_one_turn_at_a_time(self) -> None:
        async def wide(chat: Chat) -> None:
            await chat.turn("begin")
            await asyncio.gather(*(chat.fork().turn(f"{n}") for n in range(8)))

        run = ScriptedRun(delay_s=lambda word: 0.002)
        pending = [0]
        answer, most = run.say, []

        def counted(word: Any) -> None:
            pending[0] += isinstance(word, TurnAsked)
            most.append(pending[0])
            answer(word)

        run.say = counted  # type: ignore[method-assign]

        async def played() -> None:
            runner = run.runner(wide)
            run.tell = lambda message: (pending.__setitem__(0, pending[0] - 1), runner.tell(message))[1]
            runner.tell(begin())
            await run.end_of(0)

        asyncio.run(played())
        assert max(most) == 1
        assert len(run.asked()) == 9

    def test_the_first_turn_is_taken_in_the_chat_that_the_episode_is_given(self) -> None:
        async def episode(chat: Chat, row: Row) -> float:
            await chat.fresh("short").turn()
            return 1.0

        end, _ = play(episode)
        assert isinstance(end, EpisodeBroken)
        assert "the first turn of an episode is taken in the chat that it is given" in end.detail

    def test_a_fresh_chat_knows_nothing_but_its_messages(self) -> None:
        async def asks(chat: Chat) -> None:
            await chat.turn("begin")
            helper = chat.fresh({"role": "system", "content": "Be short."}, trains=False)
            await helper.turn("sum up")
            await helper.turn("again")

        _, run = play(asks)
        _, first, second = run.asked()
        assert text(first.tokens) == "[system]Be short.[user]sum up[assistant]"
        assert (first.is_new, first.is_trained, second.is_new, second.is_trained) == (
            True,
            False,
            False,
            False,
        )

    def test_stripped_thinking_goes_on_in_a_new_branch(self) -> None:
        async def thinks(chat: Chat) -> None:
            turn = await chat.turn("a")
            assert (turn.thinking, turn.text) == ("hm", "yes")
            chat.reward(0.5)
            await chat.turn("b")
            await chat.turn({"role": "tool", "content": "t"})

        end, run = play(thinks, lambda context: "<hm>yes", strips=True)
        _, second, third = run.asked()
        moved = child_number(0, 0)
        assert [(asked.branch, asked.number, asked.is_new) for asked in run.asked()] == [
            (0, 0, True),
            (moved, 0, True),
            (moved, 1, False),
        ]
        assert text(second.tokens) == f"[user]a[assistant]yes{STOP}[user]b[assistant]"
        assert text(third.tokens) == "[tool]t[assistant]"
        assert second.reward is None
        assert end.last_rewards == {0: 0.5}
        _, kept = play(thinks, lambda context: "<hm>yes")
        assert {asked.branch for asked in kept.asked()} == {0}

    def test_other_tools_begin_a_branch_and_the_same_ones_do_not(self) -> None:
        def look(where: str) -> str:
            """Look somewhere."""
            return where

        async def asks(chat: Chat) -> None:
            await chat.turn("a", tools=[look])
            await chat.turn("b", tools=[look])
            await chat.turn("c")
            await chat.turn("d", tools=[])

        _, run = play(asks)
        assert [asked.is_new for asked in run.asked()] == [True, False, False, True]
        assert text(run.asked()[0].tokens).startswith("[tools]look[user]a")
        assert text(run.asked()[3].tokens).startswith("[user]a[assistant]0")

    def test_members_share_the_tasks_randomness_and_nothing_else(self) -> None:
        drawn: dict[int, tuple[float, float, float, float]] = {}

        async def draws(chat: Chat) -> None:
            fork = chat.fork()
            chats = (chat.task_rng, chat.rng, fork.task_rng, fork.rng)
            drawn[len(drawn)] = tuple(rng.random() for rng in chats)  # type: ignore[assignment]

        async def played() -> None:
            run = ScriptedRun()
            runner = run.runner(draws)
            for number, choices in enumerate(
                [{}, {"member": 1}, {"attempt": 1}, {"epoch": 1}, {"is_evaluation": True}]
            ):
                runner.tell(begin(number, **choices))
                await run.end_of(number)
            runner.tell(begin(9, is_evaluation=True, epoch=5))
            await run.end_of(9)

        asyncio.run(played())
        task, own, fork_task, fork_own = drawn[0]
        assert len({task, own, fork_task, fork_own}) == 4
        assert drawn[1][::2] == drawn[2][::2] == (task, fork_task)
        assert drawn[3][0] != task
        assert drawn[4][0] == drawn[5][0] != task
        assert len({each[1] for each in drawn.values()}) == 6


class TestReplay:
    def test_who_is_begun_again_asks_the_same_and_has_no_side_effect_twice(self) -> None:
        bought: list[str] = []

        async def buys(chat: Chat) -> float:
            async def buy(key: str) -> tuple[str, int]:
                bought.append(key)
                return "ticket", len(bought)

            await chat.turn("begin")
            got = await chat.once("buy", buy)
            first, second = chat.fork(), chat.fork()
            await asyncio.gather(first.turn(f"a {got}"), second.turn("b"))
            assert got == ["ticket", 1], "as it was written down"
            return float((await first.turn("c")).text)

        end, run = play(buys)
        before = list(run.said)
        assert [type(word) for word in before[:3]] == [TurnAsked, OnceAsked, OnceDone]
        run.said.clear()
        again, _ = play(buys, run=run)
        assert again == end
        assert run.num_drawn == 4
        assert bought == ["run/1/train/0/7/0/0/0/1/buy"]
        said = [word for word in before if not isinstance(word, OnceDone)]
        assert run.said == said

    def test_a_blocking_function_has_its_side_effects_in_its_own_thread(self) -> None:
        threads: list[int] = []
        here: list[int] = []

        def buys(chat: BlockingChat) -> float:
            got = chat.once("buy", lambda key: threads.append(threading.get_ident()) or {"key": key})
            here.append(threading.get_ident())
            return float(got["key"].endswith("/buy"))

        end, run = play(buys)
        assert end.reward == 1.0
        play(buys, run=run)
        assert threads == here[:1], "and not again"

    def test_an_effect_that_raises_is_not_written_down(self) -> None:
        async def fails(chat: Chat) -> float:
            with pytest.raises(ZeroDivisionError):
                await chat.once("divide", lambda key: 1 / 0)
            return float(await chat.once("divide", lambda key: 2))

        end, run = play(fails)
        assert end.reward == 2.0
        assert list(run.once) == [(0, 1)]


class TestEnds:
    @pytest.mark.parametrize("reason", ["context", "turns", "deadline"])
    def test_a_refused_turn_ends_an_episode_as_truncated_with_what_it_had(self, reason: str) -> None:
        async def endless(chat: Chat) -> float:
            while True:
                await chat.turn("more")
                chat.reward(1.0)

        end, _ = play(endless, lambda context: f"!{reason}" if context.count("more") == 3 else "ok")
        assert end == EpisodeDone(episode=0, reward=2.0, last_rewards={}, is_truncated=True)

    def test_who_catches_it_may_return_a_value_and_is_not_asked_for_again(self) -> None:
        async def catches(chat: Chat) -> float:
            for _ in range(3):
                with pytest.raises(EpisodeTruncated, match="truncated: turns") as caught:
                    await chat.turn("more")
                assert caught.value.reason == "turns"
            with pytest.raises(EpisodeTruncated):
                await chat.fresh().turn("other")
            return 0.5

        end, run = play(catches, lambda context: "!turns")
        assert (end.reward, end.is_truncated, len(run.asked())) == (0.5, True, 1)

    def test_a_full_context_may_be_left_for_a_shorter_one(self) -> None:
        async def compacts(chat: Chat) -> float:
            with pytest.raises(EpisodeTruncated):
                await chat.turn("long")
            return float((await chat.fresh("short").turn()).text)

        end, _ = play(compacts, lambda context: "!context" if "long" in context else counting(context))
        assert (end.reward, end.is_truncated) == (0.0, False)

    @pytest.mark.parametrize(
        ("value", "said"),
        [("1.0", "is a number"), (float("nan"), "is finite"), (1e300, "at most"), ([1], "is a number")],
    )
    def test_what_is_no_reward_is_a_failure_with_its_value(self, value: Any, said: str) -> None:
        async def returns(chat: Chat) -> Any:
            return value

        end, _ = play(returns)
        assert end.reason == "wrong result"
        assert said in end.detail

    @pytest.mark.parametrize(
        "error", [ValueError("odd"), SystemExit(3), asyncio.CancelledError(), StopIteration()]
    )
    def test_whatever_an_environment_raises_is_data_with_its_traceback(self, error: BaseException) -> None:
        async def fails(chat: Chat) -> None:
            await chat.turn("a")
            raise error

        def blocks(chat: BlockingChat) -> None:
            chat.turn("a")
            raise error

        for function in (fails, blocks):
            end, _ = play(function)
            assert isinstance(end, EpisodeBroken)
            assert end.reason == "raised"
            assert "raise error" in end.detail

    def test_an_ended_episode_is_cancelled_cleans_up_and_is_not_spoken_of(self) -> None:
        cleaned: list[str] = []

        async def waits(chat: Chat) -> None:
            try:
                await chat.turn("a")
            finally:
                cleaned.append("async")

        def blocks(chat: BlockingChat) -> None:
            try:
                chat.turn("a")
            finally:
                cleaned.append("blocking")

        async def played(function: Any) -> None:
            run = ScriptedRun(delay_s=lambda word: 0.05)
            runner = run.runner(function)
            runner.tell(begin())
            while not run.asked():
                await asyncio.sleep(0.001)
            runner.tell(EndEpisode(episode=0))
            runner.tell(EndEpisode(episode=0))
            await asyncio.sleep(0.1)  # The answer comes, and is dropped.
            assert [type(word) for word in run.said] == [TurnAsked]
            assert runner.num_open == 0

        for function in (waits, blocks):
            asyncio.run(played(function))
        assert cleaned == ["async", "blocking"]

    def test_code_that_goes_on_after_its_end_is_told_so(self) -> None:
        told: list[str] = []

        async def goes_on(chat: Chat) -> None:
            try:
                await chat.turn("a")
            except asyncio.CancelledError:
                with pytest.raises(Exception, match="is over") as caught:
                    await chat.turn("b")
                told.append(type(caught.value).__name__)

        async def played() -> None:
            run = ScriptedRun(delay_s=lambda word: 9.0)
            runner = run.runner(goes_on)
            runner.tell(begin())
            await asyncio.sleep(0.01)
            runner.tell(EndEpisode(episode=0))
            await asyncio.sleep(0.01)
            assert len(run.said) == 1

        asyncio.run(played())
        assert told == ["EpisodeClosed"]


SHORT = EpisodeLimits(start_limit_s=0.2, call_limit_s=0.1)


class TestLimits:
    def test_a_start_and_a_call_that_take_too_long_are_failures_with_where_they_are(self) -> None:
        async def never_starts(chat: Chat) -> None:
            await asyncio.sleep(9)

        async def never_goes_on(chat: Chat) -> None:
            await chat.turn("a")
            await asyncio.sleep(9)

        end, _ = play(never_starts, limits=SHORT)
        assert end.reason == "start limit"
        assert "within 0.2 s" in end.detail
        assert "await asyncio.sleep(9)" in end.detail
        end, _ = play(never_goes_on, limits=SHORT)
        assert end.reason == "call limit"
        assert "within 0.1 s" in end.detail

    def test_waiting_for_the_run_is_nobodys_fault(self) -> None:
        run = ScriptedRun(delay_s=lambda word: 0.3)
        end, _ = play(two_turns, run=run, limits=SHORT)
        assert end.reward == 1.5

    def test_an_episode_that_takes_too_long_in_all_gets_no_further_turn(self) -> None:
        async def slow(chat: Chat) -> None:
            for _ in range(100):
                await chat.turn("a")
                chat.reward(1.0)
                await asyncio.sleep(0.02)

        limits = EpisodeLimits(start_limit_s=9.0, call_limit_s=9.0, limit_s=0.05)
        end, _ = play(slow, limits=limits)
        assert end.is_truncated
        assert 2 <= end.reward <= 4

    def test_a_thread_that_hangs_is_a_failure_and_the_process_is_known_to_be_stuck(self) -> None:
        go_on = threading.Event()

        def hangs(chat: BlockingChat) -> None:
            chat.turn("a")
            go_on.wait(20)

        async def calls(chat: Chat) -> None:
            turn = await chat.turn("a", tools=[wait])
            await chat.use_tools(turn)

        def wait() -> None:
            """Wait for a long time."""
            go_on.wait(20)

        async def played(function: Any) -> None:
            run = ScriptedRun(lambda context: "CALL wait {}")
            runner = run.runner(function, limits=SHORT)
            runner.tell(begin())
            end = await run.end_of(0)
            assert end.reason == "call limit"
            assert "go_on.wait(20)" in end.detail
            while not isinstance(run.said[-1], EpisodeStuck):
                await asyncio.sleep(0.01)
            assert "go_on.wait(20)" in run.said[-1].detail
            go_on.set()

        for function in (hangs, calls):
            go_on.clear()
            asyncio.run(played(function))

    def test_code_that_ends_in_time_leaves_nothing_stuck(self) -> None:
        async def slow(chat: Chat) -> None:
            await chat.turn("a")
            await asyncio.sleep(9)

        async def played() -> None:
            run = ScriptedRun()
            run.runner(slow, limits=SHORT).tell(begin())
            await run.end_of(0)
            await asyncio.sleep(0.2)
            assert not any(isinstance(word, EpisodeStuck) for word in run.said)

        asyncio.run(played())


def test_a_thousand_episodes_share_a_loop_cheaply() -> None:
    async def long(chat: Chat) -> float:
        return sum([float((await chat.turn("again")).text) for _ in range(8)])

    async def played() -> None:
        run = ScriptedRun(delay_s=lambda word: 0.01)
        runner = run.runner(long)
        # Every member asks the same; what is remembered of one answers all.
        for number in range(1000):
            runner.tell(begin(number, member=number))
        assert runner.num_open == 1000
        ends = [await run.end_of(number) for number in range(1000)]
        assert {end.reward for end in ends} == {28.0}

    began, num_threads = time.process_time(), threading.active_count()
    asyncio.run(played())
    assert threading.active_count() <= num_threads
    assert time.process_time() - began < 8.0, "8,000 turns, a millisecond each"


class TestFunctions:
    @pytest.mark.parametrize(
        ("function", "options", "said"),
        [
            (3, {}, "is not a function"),
            (lambda row: 1.0, {}, "takes no 'chat'"),
            (lambda chat, row, depth: 1.0, {}, "needs 'depth'"),
            (lambda chat, row: 1.0, {"depth": 1}, "has no option 'depth'"),
            (lambda chat, row: 1.0, {"row": 1}, "is what the run gives it"),
            (type("Empty", (), {}), {}, "without a method __call__"),
        ],
    )
    def test_what_cannot_be_called_is_refused_before_any_episode(
        self, function: Any, options: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(UserError, match=said):
            episode_function("mine", function, options)

    def test_a_class_is_made_once_with_the_options_and_called_for_each_episode(self) -> None:
        class Game:
            def __init__(self, size: int) -> None:
                self.size = size

            def __call__(self, chat: Any) -> float:
                return float(self.size)

        made = episode_function("game", Game, {"size": 3})
        assert not made.is_async
        assert made.call(**made.arguments(None, None)) == 3.0
        with pytest.raises(UserError, match="needs the option 'size'"):
            episode_function("game", Game, {})

    def test_values_of_the_environment_do_not_get_into_what_is_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GAME_KEY", "sesame-open")
        made = episode_function("game", lambda chat, key: 1.0, {"key": "env:GAME_KEY"})
        assert made.options == {"key": "sesame-open"}
        assert made.hidden("no: sesame-open") == "no: env:GAME_KEY"


def test_an_answer_to_nothing_is_dropped() -> None:
    async def played() -> None:
        run = ScriptedRun(delay_s=lambda word: 0.01)
        runner = run.runner(two_turns)
        for episode in (0, 5):
            runner.tell(TurnTaken(episode=episode, branch=3, number=0, tokens=(), finish="stop"))
        runner.tell(begin())
        await asyncio.sleep(0)
        runner.tell(TurnTaken(episode=0, branch=3, number=0, tokens=(), finish="stop"))
        assert (await run.end_of(0)).reward == 1.5  # type: ignore[union-attr]

    asyncio.run(played())
