"""Demonstrations of episodes: a teacher's turns, played in the real environment, for a warm start to show.

A row's column `demonstration` has the texts of the teacher's turns. They are said in the place of the policy,
and what the environment answers is what the policy will see. An episode is shown as a whole: the teacher's
turns are learned, each behind all that came before it.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from dora_rl.core.errors import ConfigError
from dora_rl.core.named import Objects
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.envs.chat.open_codec import open_codec
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes import episode_messages as say
from dora_rl.envs.episodes.episode_function import load_episode
from dora_rl.envs.episodes.limits import EpisodeLimits
from dora_rl.envs.episodes.runner import EpisodeRunner
from dora_rl.model.tokenizer import load_tokenizer
from dora_rl.trainer.supervised import Shown

_AT_ONCE = 256
"""Episodes that are played at a time."""


class _Taught(Struct, kw_only=True):
    """A branch of an episode that a teacher plays: what it begins with, and the tokens behind that."""

    prompt: tuple[int, ...]
    response: list[int] = field(default_factory=list)
    is_answer: list[bool] = field(default_factory=list)

    def add(self, tokens: tuple[int, ...], *, is_answer: bool) -> None:
        """Append what the environment said, or the teacher's answer."""
        self.response += tokens
        self.is_answer += [is_answer] * len(tokens)


class _Lesson(Struct, kw_only=True):
    """An episode with its teacher: what is left to say, and the branches so far."""

    turns: list[tuple[int, ...]]
    branches: dict[int, _Taught] = field(default_factory=dict)


class _Teacher:
    """Answers the episodes of many rows with their demonstrations."""

    def __init__(self, recipe: Recipe, directory: Path, objects: Objects) -> None:
        episode = recipe.episode
        assert episode is not None, "only episodes are demonstrated turn by turn"
        assert recipe.data is not None, "a run without rows is refused"
        self._seed = recipe.seed
        self._tokenizer = load_tokenizer(directory)
        self._runner = EpisodeRunner(
            load_episode(episode.function, episode.options, objects, sandbox=episode.sandbox),
            open_codec(
                directory,
                thinking=episode.thinking,
                tool_calls=episode.tool_calls,
                template_options=recipe.data.template_options,
            ),
            _limits(episode),
            self._hear,
            run="demonstrations",
            endpoint=episode.endpoint,
        )
        self._lessons: dict[int, _Lesson] = {}
        self._is_idle = asyncio.Event()
        self.shown: list[Shown] = []
        self.problem: ConfigError | None = None

    async def play(self, rows: Sequence[Row]) -> None:
        """Play the episodes of some rows, side by side."""
        self._is_idle.clear()
        for row in rows:
            self._lessons[row.row] = _Lesson(turns=self._turns(row))
        for row in rows:
            begin = say.BeginEpisode(episode=row.row, row=row, epoch=0, member=0, attempt=0, seed=self._seed)
            self._runner.tell(begin)
        await self._is_idle.wait()
        if self.problem is not None:
            raise self.problem

    def _turns(self, row: Row) -> list[tuple[int, ...]]:
        texts = row.columns.get("demonstration")
        if not (isinstance(texts, list) and texts and all(isinstance(each, str) for each in texts)):
            raise ConfigError(
                f"row {row.row} has no list of texts under 'demonstration' for a warm start to show",
                hint="give the rows such a column, a text for each turn, or leave warm_start.steps at 0",
            )
        end = self._tokenizer.eos_token_id
        return [(*self._tokenizer(text, add_special_tokens=False)["input_ids"], end) for text in texts]

    def _hear(self, word: say.EpisodeReply) -> None:
        lesson = self._lessons.get(word.episode) if not isinstance(word, say.WorkerReady) else None
        if lesson is None:
            return
        match word:
            case say.TurnAsked() if lesson.turns:
                answer = lesson.turns.pop(0)
                if (taught := lesson.branches.get(word.branch)) is None:
                    taught = lesson.branches[word.branch] = _Taught(prompt=word.tokens)
                else:
                    taught.add(word.tokens, is_answer=False)
                taught.add(answer, is_answer=True)
                self._runner.tell(
                    say.TurnTaken(
                        episode=word.episode,
                        branch=word.branch,
                        number=word.number,
                        tokens=answer,
                        finish="stop",
                    )
                )
            case say.TurnAsked():
                # The teacher has nothing more to say.
                self._runner.tell(say.EndEpisode(episode=word.episode))
                self._over(word.episode)
            case say.OnceAsked():
                run = say.OnceRun(episode=word.episode, branch=word.branch, number=word.number)
                self._runner.tell(run)
            case say.OnceDone():
                self._runner.tell(
                    say.OnceRecorded(
                        episode=word.episode, branch=word.branch, number=word.number, value=word.value
                    )
                )
            case say.EpisodeDone():
                self._over(word.episode)
            case say.EpisodeBroken():
                self.problem = ConfigError(
                    f"the demonstration of row {word.episode} cannot be played: {word.reason}: {word.detail}",
                    hint="mend the episode, or leave warm_start.steps at 0",
                )
                self._over(word.episode)

    def _over(self, episode: int) -> None:
        for each in self._lessons.pop(episode).branches.values():
            shown = Shown(prompt=each.prompt, response=tuple(each.response), is_answer=tuple(each.is_answer))
            self.shown.append(shown)
        if not self._lessons:
            self._is_idle.set()


def demonstrated_episodes(
    rows: Sequence[Row], recipe: Recipe, directory: Path, objects: Objects
) -> list[Shown]:
    """The rows' demonstrations as whole episodes, of which the teacher's turns are to be learned."""

    async def played() -> list[Shown]:
        teacher = _Teacher(recipe, directory, objects)
        for begin in range(0, len(rows), _AT_ONCE):
            await teacher.play(rows[begin : begin + _AT_ONCE])
        return teacher.shown

    return asyncio.run(played())


def _limits(episode: EpisodeSettings) -> EpisodeLimits:
    return EpisodeLimits(
        start_limit_s=episode.start_limit_s, call_limit_s=episode.call_limit_s, limit_s=episode.limit_s
    )
