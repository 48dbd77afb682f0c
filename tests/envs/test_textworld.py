"""Games of textworld: what an answer means, and, with the package, games that are made and won."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import UserError
from dora_rl.envs.episodes.episode_function import load_episode
from dora_rl.envs.tasks import load_task
from dora_rl.envs.tasks.textworld_games import _tidy, meant, numbered, open_game

from .scripted_run import play, text

SHOWN = "\n\n-= Kitchen =-\nYou are in a kitchen.\n\n\n\nThere is an exit.\n\n>        -= Kitchen =-0/2"


@pytest.mark.parametrize(
    ("answer", "command"),
    [
        ("go north", "go north"),
        ("> Go North.\nBecause", "go north"),
        ("2", "look"),
        ("2. look around", "look"),
        ("7", "7"),
        ("I do not know", "i do not know"),
        ("", ""),
    ],
)
def test_an_answer_is_a_possible_command_its_number_or_what_it_says(answer: str, command: str) -> None:
    assert meant(answer, ["go north", "look"]) == command


def test_what_a_game_shows_has_no_prompt_and_no_status_line() -> None:
    assert _tidy(SHOWN) == "-= Kitchen =-\nYou are in a kitchen.\n\nThere is an exit."


def test_without_the_package_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(UserError, match="needs the package 'textworld'") as error:
        load_task("textworld:coin_collector", seed=0, options={})
    assert error.value.hint == "pip install textworld"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
def test_a_game_is_made_of_its_seed_and_won_by_following_its_directions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("textworld")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = load_task("textworld:coin_collector", seed=0, options={"level": 2, "rows": 2, "held_out_rows": 1})
    seeds = [row.columns["game_seed"] for row in (*task.train, *task.held_out)]
    assert len(set(seeds)) == 3
    assert task.episode is not None
    episode = load_episode(task.episode.function, task.episode.options).call

    def walked(context: str) -> str:
        """Take the coin where it is, else go where it has not been."""
        menu = context.rpartition("[user]")[2].rpartition("[assistant]")[0].splitlines()
        choices = [line for line in menu if line[:1].isdigit()]
        wanted = [line for line in choices if "take coin" in line] or [
            line for line in choices if " go " in line
        ]
        return wanted[-1].partition(".")[0]

    for row in task.train:
        end, run = play(episode, walked, row=row)
        assert (end.reward, len(run.asked())) == (1.0, 2)
        again, other = play(episode, walked, row=row)
        assert [word.tokens for word in other.asked()] == [word.tokens for word in run.asked()]
        assert again.reward == 1.0
    first = text(run.asked()[0].tokens)
    assert "Answer with the number of a command" in first
    assert "$$" not in first, "the banner is left out"
    assert sorted(path.suffix for path in tmp_path.rglob("coin_collector-*")) == [
        ".json",
        ".json",
        ".z8",
        ".z8",
    ]
    end, run = play(episode, lambda context: "fly", row=task.train[0])
    assert (end.reward, len(run.asked())) == (0.0, 12)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("options", "words"),
    [({"level": 0}, "no levels from 0"), ({"commands": "nubered"}, "commands cannot be 'nubered'")],
)
def test_a_wrong_option_is_a_sentence(options: dict[str, Any], words: str) -> None:
    pytest.importorskip("textworld")
    with pytest.raises(UserError, match=words):
        load_task("textworld:coin_collector", seed=0, options=options)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
def test_games_of_one_process_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("textworld")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def played(seed: int) -> list[str]:
        game = open_game(kind="coin_collector", level=2, game_seed=seed)
        seen = [numbered(*game.reset()), *(game.step(str(n % 3 + 1))[0] for n in range(4))]
        game.close()
        return seen

    alone = [played(seed) for seed in (1, 2)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(played, [1, 2] * 8)) == alone * 8
