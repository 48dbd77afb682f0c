"""A pool of episode workers, and a run that answers what they ask."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from dora_rl.core.recipe import Patience
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.episode_messages import (
    BeginEpisode,
    EpisodeBroken,
    EpisodeDone,
    OpenWorker,
    TurnAsked,
    TurnTaken,
)
from dora_rl.launch.local import LOCAL, LocalHandle
from dora_rl.launch.waiting import wait_for
from dora_rl.run.episodes.pool import EpisodeLost, EpisodePool
from dora_rl.run.worker_deaths import WorkerDeaths

USER = Path(__file__).with_name("user_episodes.py")
_LIMIT_S = 40.0
_END = 0


def letters_tokenizer(directory: Path) -> Path:
    """A directory with a tokenizer whose tokens are letters, and an end."""
    vocabulary = {"<end>": _END} | {chr(code): code for code in [10, *range(32, 127)]}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<end>"])
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return directory


def opening(directory: Path, function: str, **choices: Any) -> OpenWorker:
    limits = {"start_limit_s": 20.0, "call_limit_s": 20.0, "options": {}}
    return OpenWorker(
        function=f"{USER}:{function}",
        run="run",
        tokenizer=str(letters_tokenizer(directory / "tokenizer")),
        thinking="keep",
        tool_calls="auto",
        template_options={},
        **(limits | choices),
    )


class AnsweredPool:
    """A pool whose episodes are answered with how many answers there were; what is lost is begun again."""

    def __init__(self, pool: EpisodePool, deaths: WorkerDeaths) -> None:
        self.pool, self.deaths = pool, deaths
        self.heard: list[Any] = []
        self.ends: dict[int, EpisodeDone | EpisodeBroken] = {}
        """How each member ended."""
        self.is_answering = True
        self._begun: dict[int, BeginEpisode] = {}
        self.taken: dict[tuple[int, int], TurnTaken] = {}
        """By member and number: who is begun again is answered as before."""
        self.num_drawn = 0

    def begin(self, member: int, prompt: str = "", **columns: Any) -> None:
        self._begin(
            BeginEpisode(
                episode=len(self._begun),
                row=Row(row=0, prompt=prompt, columns=columns),
                epoch=0,
                member=member,
                attempt=0,
                seed=1,
            )
        )

    def _begin(self, begin: BeginEpisode) -> None:
        self._begun[begin.episode] = begin
        self.pool.begin(begin)

    def until(self, is_it: Callable[[], bool], what: str) -> None:
        """Go on until it is so."""
        deadline = time.monotonic() + _LIMIT_S
        while not is_it():
            assert time.monotonic() < deadline, f"no {what}; heard {self.heard[-5:]}"
            wait_for(self.pool.handles, (), 0.1)
            for word in self.pool.words():
                self.hear(word)

    def all_end(self, count: int) -> None:
        self.until(lambda: len(self.ends) == count, f"end of {count} episodes")
        assert self.pool.num_open == 0

    def hear(self, word: Any) -> None:
        self.heard.append(word)
        begun = self._begun[word.episode]
        match word:
            case TurnAsked() if self.is_answering:
                self.pool.tell(self._answer(begun, word))
            case EpisodeLost():
                again = {**{name: getattr(begun, name) for name in begun.__struct_fields__}}
                self._begin(BeginEpisode(**again | {"episode": len(self._begun)}))
            case EpisodeDone() | EpisodeBroken():
                assert begun.member not in self.ends, "an episode ends once"
                self.ends[begun.member] = word

    def _answer(self, begun: BeginEpisode, asked: TurnAsked) -> TurnTaken:
        place = (begun.member, asked.number)
        if place not in self.taken:
            self.num_drawn += 1
        self.taken[place] = TurnTaken(
            episode=asked.episode,
            branch=asked.branch,
            number=asked.number,
            tokens=(ord(str(asked.number)), _END),
            finish="stop",
        )
        return self.taken[place]

    @property
    def pids(self) -> list[int]:
        return [handle.pid for handle in self.pool.handles if isinstance(handle, LocalHandle)]


@contextmanager
def answered(directory: Path, opened: OpenWorker, **choices: Any) -> Iterator[AnsweredPool]:
    deaths = WorkerDeaths(Patience(max_deaths=3), directory / "book")
    pool = EpisodePool(
        opened,
        launch=LOCAL,
        deaths=deaths,
        log=lambda number: directory / f"episodes_{number}.log",
        **{"processes": 1, "start_s": 30.0, "silence_s": 10.0} | choices,
    )
    try:
        yield AnsweredPool(pool, deaths)
    finally:
        pool.close()
