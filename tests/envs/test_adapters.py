"""Environments of others, played unchanged."""

import asyncio
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.envs.adapters.first_messages import first_messages
from dora_rl.envs.adapters.gym_environment import from_gym
from dora_rl.envs.adapters.trl_environment import from_environment
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.episode_function import load_episode
from dora_rl.envs.episodes.episode_messages import EpisodeDone, OnceDone
from dora_rl.envs.episodes.judge import EpisodeJudge, load_judging
from dora_rl.envs.episodes.snapshot import read_snapshot
from dora_rl.envs.scoring.functions import reward_function

from .scripted_run import ROW, ScriptedRun, begin, play, text

SEEDED = Row(row=3, prompt=None, columns={"seed": 11})


class Counter:
    """An environment in TRL's form: reach the target."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def reset(self, answer: str, **columns: Any) -> str:
        self.total, self.target = 0, int(answer)
        return f" Reach {answer}."

    def add(self, n: int) -> str:
        """Add to the total.

        Args:
            n: how much
        """
        if n > 100:
            raise ValueError("too much")
        self.total += n
        return f"total {self.total}"

    async def peek(self) -> int:
        """The total so far."""
        return self.total

    def get_reward(self) -> float:
        return float(self.total == self.target)

    def _hidden(self) -> None: ...


def adding(*answers: str) -> Callable[[str], str]:
    """A policy that gives these answers one after the other."""
    return lambda context: answers[context.count("[assistant]") - 1]


class TestTrl:
    def test_methods_are_tools_and_the_environment_gives_the_reward(self) -> None:
        policy = adding('CALL add {"n": 40}', 'CALL add {"n": "2"}', "CALL peek {}", "done")
        end, run = play(from_environment(Counter), policy)
        assert end.reward == 1.0
        asked = [text(word.tokens) for word in run.asked()]
        assert asked[0] == "[tools]add,peek[user]What is six times seven? Reach 42.[assistant]"
        assert asked[1:] == [f"[tool]{said}[assistant]" for said in ("total 40", "total 42", "42")]

    def test_a_bad_call_is_text_and_an_environment_that_raises_is_a_failure(self) -> None:
        policy = adding('CALL add {"n": 101}', 'CALL sub {"n": 1}', "CALL add {}", "done")
        end, run = play(from_environment(Counter), policy)
        assert end.reward == 0.0
        said = [text(word.tokens) for word in run.asked()[1:]]
        assert [re.search("too much|no tool 'sub'|'n' is missing", each) is not None for each in said] == [
            True
        ] * 3

        class Breaks(Counter):
            def reset(self, **columns: Any) -> str:
                raise OSError("no disk")

        end, _ = play(from_environment(Breaks), policy)
        assert (end.reason, "no disk" in end.detail) == ("raised", True)

    def test_instances_are_used_again_unless_their_episode_failed(self) -> None:
        class Fails(Counter):
            made = 0

            def get_reward(self) -> float:
                if self.total < 0:
                    raise OSError("broken")
                return 1.0

        episode = from_environment(Fails)
        for _ in range(3):
            assert play(episode, adding("done"))[0].reward == 1.0
        assert Fails.made == 1
        assert play(episode, adding('CALL add {"n": -1}', "done"))[0].reason == "raised"
        assert play(episode, adding("done"))[0].reward == 1.0
        assert Fails.made == 2

    def test_a_truncated_episode_is_judged_by_what_it_came_to(self) -> None:
        end, _ = play(from_environment(Counter), adding('CALL add {"n": 42}', "!turns"))
        assert (end.reward, end.is_truncated) == (1.0, True)

    def test_reset_gets_the_columns_it_takes_and_the_groups_seed(self) -> None:
        got: list[dict[str, Any]] = []

        class Seeded:
            def reset(self, seed: int, answer: str = "") -> str:
                got.append({"seed": seed, "answer": answer})
                return "go"

        for member in (0, 1):
            play(from_environment(Seeded), adding("done"), member=member)
        play(from_environment(Seeded), adding("done"), row=SEEDED)
        assert got[0] == got[1]
        assert (got[0]["answer"], got[2]) == ("42", {"seed": 11, "answer": ""})

    def test_rows_choose_among_several_and_tools_may_stand_alone(self) -> None:
        def double(n: int) -> int:
            """Twice n."""
            return 2 * n

        row = Row(row=0, prompt="go", columns={"answer": "0", "environment": "count"})
        several = from_environment({"count": Counter, "other": Counter}, tools=[double])
        end, run = play(several, adding("done"), row=row)
        assert end.reward == 1.0
        assert text(run.asked()[0].tokens).startswith("[tools]double,add,peek[user]go Reach 0.")
        end, run = play(from_environment(tools=[double]), adding('CALL double {"n": 4}', "8"))
        assert text(run.asked()[1].tokens) == "[tool]8[assistant]"
        with pytest.raises(UserError, match="neither an environment nor a tool"):
            from_environment()

    def test_random_numbers_of_the_process_are_an_episodes_own(self) -> None:
        class Draws:
            def reset(self) -> str:
                return f"first {random.random()}"

            def draw(self) -> str:
                """Draw a number."""
                return f"{random.random()}"

        episode = from_environment(Draws, swaps_random=True)
        before = random.getstate()
        said = []
        for disturbance in (0, 5):
            random.seed(disturbance)
            _, run = play(episode, adding("CALL draw {}", "CALL draw {}", "done"), member=disturbance)
            said.append([text(word.tokens) for word in run.asked()])
            random.seed(disturbance + 1)
        random.setstate(before)
        assert said[0] == said[1]
        assert said[0][1] != said[0][2]


class Corridor:
    """An environment of gymnasium's form: walk to the end."""

    class action_space:
        n = 2

    def __init__(self, length: int = 3) -> None:
        self.length, self.is_closed = length, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.place, self.seed_given = 0, seed
        return f"at 0 of {self.length}", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.place += 1 if action else -1
        return f"at {self.place}", 0.5, self.place >= self.length, False, {}

    def close(self) -> None:
        self.is_closed = True


class OldGame:
    """An environment of the old form, whose steps return the score so far."""

    def seed(self, seed: int) -> None:
        self.given = seed

    def reset(self) -> str:
        self.score = 0
        return f"game {self.given}"

    def step(self, action: str) -> tuple[str, int, bool, dict[str, Any]]:
        self.score += len(action)
        return "ok", self.score, action == "stop", {"admissible": ["go", "stop"]}


class TestGym:
    def test_steps_are_turns_and_their_rewards_are_the_turns(self) -> None:
        row = Row(row=0, prompt=None, columns={})
        end, run = play(from_gym(Corridor), adding("I go 1", "1", "1"), row=row)
        assert (end.reward, end.last_rewards) == (1.5, {0: 0.5})
        asked = run.asked()
        assert [text(word.tokens) for word in asked] == [
            "[user]at 0 of 3[assistant]",
            "[user]at 1[assistant]",
            "[user]at 2[assistant]",
        ]
        assert [word.reward for word in asked] == [None, 0.5, 0.5]

    def test_an_answer_that_is_no_action_is_told_so_and_takes_no_step(self) -> None:
        end, run = play(from_gym(Corridor, bad_action_reward=-1, max_steps=3), adding("left", "7", "1"))
        assert end.reward == -1.5
        assert "write a number from 0 to 1" in text(run.asked()[1].tokens)
        named = from_gym(Corridor, action=["left", "right"], max_steps=2)
        end, run = play(named, adding("Not left but RIGHT", "up"))
        assert text(run.asked()[1].tokens) == "[user]at 1[assistant]"

    def test_the_old_form_is_seeded_and_its_score_is_told_by_steps(self) -> None:
        def worded(observation: str, info: dict[str, Any]) -> str:
            return f"{observation} {info.get('admissible', '')}"

        episode = from_gym(OldGame, is_score=True, observation=worded, prompt="Play:")
        end, run = play(episode, adding("go", "stop"), row=SEEDED)
        assert (end.reward, [word.reward for word in run.asked()]) == (6.0, [None, 2.0])
        assert text(run.asked()[0].tokens) == "[user]Play:game 11 [assistant]"

    def test_one_that_is_made_of_a_row_is_made_for_it_and_closed(self) -> None:
        made: list[Corridor] = []

        def make(length: int) -> Corridor:
            made.append(Corridor(length))
            return made[-1]

        row = Row(row=0, prompt="go: ", columns={"length": 1})
        for _ in range(2):
            assert play(from_gym(make), adding("1"), row=row)[0].reward == 0.5
        assert [each.is_closed for each in made] == [True, True]
        same = from_gym(lambda: made[0])
        play(same, adding("1"), row=row)

    def test_one_that_gives_its_state_is_restored_and_not_played_again(self) -> None:
        class Saved(Corridor):
            done: ClassVar[list[str]] = []

            def snapshot(self) -> bytes:
                return bytes([self.place])

            def restore(self, state: bytes) -> None:
                self.place = state[0]
                self.done.append("restored")

            def step(self, action: int) -> Any:
                self.done.append("step")
                return super().step(action)

        end, run = play(from_gym(Saved), adding("1", "0", "1", "1", "1"), row=SEEDED)
        saved = [read_snapshot(word.value) for word in run.said if isinstance(word, OnceDone)]
        assert (end.reward, len(saved), Saved.done) == (2.5, 4, ["step"] * 5)
        Saved.done.clear()
        again = ScriptedRun(adding("1", "0", "1", "1", "1"))
        again.contexts[0, 0] = list(saved[2].ids)

        async def played() -> Any:
            runner = again.runner(from_gym(Saved))
            runner.tell(begin(row=SEEDED, snapshot=msgspec.msgpack.encode(saved[2])))
            return await again.end_of(0)

        again_end = asyncio.run(played())
        assert isinstance(again_end, EpisodeDone), again_end
        assert again_end.reward == end.reward
        assert Saved.done == ["restored", "step", "step"]

    def test_environments_are_made_ahead_and_checked(self) -> None:
        made: list[Corridor] = []

        def make() -> Corridor:
            made.append(Corridor(1))
            return made[-1]

        episode = from_gym(make, warm=2, check=lambda each: each is not made[1])
        for _ in range(4):
            assert play(episode, adding("1"), row=SEEDED)[0].reward == 0.5
            until = time.monotonic() + 10
            while len(made) < 3 and time.monotonic() < until:
                time.sleep(0.01)
        assert made[1].is_closed
        assert not made[0].is_closed
        with pytest.raises(UserError, match="made of a row"):
            from_gym(Corridor, warm=1)


class TestJudge:
    def test_functions_judge_a_finished_episode_with_its_environment(self) -> None:
        class Silent(Counter):
            get_reward = None

        def near(environments: list[Any], answer: list[str], **columns: Any) -> list[float]:
            return [environments[0].total / int(answer[0])]

        def polite(prompts: Any, completions: Any, log_metric: Any) -> list[float | None]:
            assert [message["role"] for message in prompts[0]] == ["user"]
            assert [message["role"] for message in completions[0]] == ["assistant", "tool", "assistant"]
            log_metric("words", 2)
            return [float("please" in completions[0][-1]["content"])]

        def absent(completions: Any) -> list[None]:
            return [None]

        judge = judged_by(near, polite, absent, weights=(2.0, 1.0, 1.0))
        end, _ = play(from_environment(Silent), adding('CALL add {"n": 21}', "please"), judge=judge)
        assert end.reward == 2.0
        assert end.values == {"near": 0.5, "polite": 1.0, "words": 2.0}

    def test_what_an_episode_returns_and_what_judges_it_add_up(self) -> None:
        judge = judged_by(lambda completions: [0.25])
        assert play(from_environment(Counter), adding("done"), judge=judge)[0].reward == 0.25

    def test_a_wrong_result_is_a_failure_and_a_group_is_not_judged(self) -> None:
        judge = judged_by(lambda completions: [1.0, 2.0])
        assert (
            "not a list of one number" in play(from_environment(Counter), adding("x"), judge=judge)[0].detail
        )
        with pytest.raises(ConfigError, match="per group"):
            load_judging(RewardConfig(function="exact_match", per="group"))


def judged_by(*functions: Any, weights: tuple[float, ...] = (1.0,)) -> EpisodeJudge:
    return EpisodeJudge(
        [
            reward_function(
                RewardConfig(function=f"m:{function.__name__}", weight=weight),
                function,
                ("prompts", "completions", "environments", "log_metric"),
            )
            for function, weight in zip(functions, weights, strict=True)
        ]
    )


def test_short_names_are_episodes_and_a_misspelt_one_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text("class Game:\n    def reset(self): ...\n")
    here = f"{tmp_path}/game.py:Game"
    assert load_episode("environment", {"environment": here}).is_async
    assert load_episode("gym", {"make": here, "max_steps": 3}).is_async
    with pytest.raises(UserError, match="no built-in episode 'gmy'") as error:
        load_episode("gmy", {})
    assert error.value.hint == "did you mean 'gym'?"
    with pytest.raises(UserError, match="has no option 'maks'"):
        load_episode("gym", {"maks": here})


def test_what_is_shown_stands_behind_the_prompt() -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u:"}]
    assert first_messages(chat, "seen")[-1] == {"role": "user", "content": "u:seen"}
    assert first_messages(None, "seen") == [{"role": "user", "content": "seen"}]
    assert first_messages("p", None) == [{"role": "user", "content": "p"}]
    assert first_messages("p", [{"role": "user", "content": "m"}])[-1]["content"] == "m"
    part = {"type": "text", "text": "t"}
    assert first_messages("p", [part])[-1]["content"] == [{"type": "text", "text": "p"}, part]
    with pytest.raises(ValueError, match="nothing can be asked"):
        first_messages(None, None)


def test_an_episode_begun_again_plays_the_same() -> None:
    run = ScriptedRun(adding('CALL add {"n": 42}', "done"))
    first, _ = play(from_environment(Counter), run=run)
    again, _ = play(from_environment(Counter), run=run)
    assert (first.reward, again.reward, run.num_drawn) == (1.0, 1.0, 2)
    assert ROW.prompt is not None


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("default")
def test_a_game_of_textarena_is_its_seeds_whoever_plays_beside() -> None:
    pytest.importorskip("textarena")
    from dora_rl.envs.adapters.textarena_games import TextArenaEpisode

    def halving(context: str) -> str:
        low, high = 1, 20
        for guess, hint in re.findall(r"\[(\d+)\]\x03\[user\]The target number is (\w+)", context):
            low, high = (int(guess) + 1, high) if hint == "higher" else (low, int(guess) - 1)
        return f"[{(low + high) // 2}]"

    said = []
    for disturbance in (1, 2):
        random.seed(disturbance)
        end, run = play(TextArenaEpisode("GuessTheNumber-v0"), halving, row=SEEDED, member=disturbance)
        assert end.reward == 1.0
        said.append([text(word.tokens) for word in run.asked()])
    assert said[0] == said[1]
    assert len(said[0]) > 1


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("default")
def test_an_environment_of_gymnasium_is_played_in_numbers_and_names() -> None:
    gymnasium = pytest.importorskip("gymnasium")

    def lake() -> Any:
        return gymnasium.make("FrozenLake-v1", is_slippery=False)

    row = Row(row=0, prompt="0 left, 1 down, 2 right, 3 up. You are at ", columns={})
    end, run = play(from_gym(lake), adding("1", "1", "2", "2", "down: 1", "2"), row=row)
    assert end.reward == 1.0
    assert text(run.asked()[0].tokens) == f"[user]{row.prompt}0[assistant]"
    named = from_gym(lake, action=["left", "down", "right", "up"], max_steps=1)
    assert play(named, adding("go down"), row=row)[0].reward == 0.0
