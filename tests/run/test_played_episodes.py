"""Episodes of an evaluation without a run: every sample ends, and nothing is left on an instance."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.recipe import Evaluation
from dora_rl.core.recipe.episodes import EpisodeSettings
from dora_rl.engines.requests import DrawnTokens
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes import episode_messages as say
from dora_rl.envs.tokenized_prompts import TokenizedPrompt
from dora_rl.launch.protocol import WorkerSpec
from dora_rl.run import messages
from dora_rl.run.prompt_table import PromptTable
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup
from dora_rl.run.sampling.played import PlayedEpisodes

from .conftest import MakeSetup

USUAL, FAILS_ONCE, FAILS, BRANCHES, NEVER_OPENS = range(5)


class Scripted:
    """A process that plays two turns of an episode, as its row says. Implements Handle."""

    is_alive = True
    is_stopped = is_mid_message = False
    node = None
    is_placed = True

    def __init__(self) -> None:
        self.words: list[Any] = [say.WorkerReady()]
        self.begun: dict[int, say.BeginEpisode] = {}
        self.most_open = 0

    def send(self, message: Any) -> None:
        match message:
            case say.BeginEpisode(episode=episode, row=row):
                self.begun[episode] = message
                self.most_open = max(self.most_open, len(self.begun))
                if row.row == NEVER_OPENS:
                    self._break(episode)
                else:
                    self._ask(episode, tokens=(1, 2, 3), is_new=True)
            case say.TurnTaken(episode=episode, number=0, branch=0):
                self._go_on(episode, self.begun[episode])
            case say.TurnTaken(episode=episode):
                del self.begun[episode]
                self.words.append(say.EpisodeDone(episode=episode, reward=0.5, values={"moves": 2.0}))
            case say.EndEpisode(episode=episode):
                self.begun.pop(episode, None)

    def _go_on(self, episode: int, begin: say.BeginEpisode) -> None:
        row = begin.row.row
        if row == FAILS or (row == FAILS_ONCE and not begin.attempt):
            self._break(episode)
        elif row == BRANCHES:
            self._ask(episode, branch=7, tokens=(6, 6, 6, 6), is_new=True)
        else:
            self._ask(episode, number=1, tokens=(5,), is_new=False)

    def _ask(self, episode: int, **fields: Any) -> None:
        self.words.append(say.TurnAsked(**{"episode": episode, "branch": 0, "number": 0} | fields))

    def _break(self, episode: int) -> None:
        del self.begun[episode]
        self.words.append(say.EpisodeBroken(episode=episode, reason="raised", detail="KeyError: 'x'"))

    def receive(self) -> list[Any]:
        words, self.words = self.words, []
        return words

    def fileno(self) -> int:
        return 0

    def flush(self) -> bool:
        return True

    def end(self, within_s: float) -> str:
        return "exited with 0"


class Stage:
    """The launch of one scripted process, and instances that answer every request with one token."""

    def __init__(self, setup: RunSetup, rows: int, root: Path) -> None:
        self.worker = Scripted()
        self.commands: deque[tuple[int, Any]] = deque()
        self.requests: dict[int, list[int]] = {}
        """Tokens that an instance holds, by request."""
        prompts = [TokenizedPrompt(row=Row(row=n, prompt="?", columns={}), token_ids=()) for n in range(rows)]
        layout = LiveLayout(root=root)
        layout.logs.mkdir(parents=True, exist_ok=True)
        self.played = PlayedEpisodes(
            setup,
            PromptTable(train=(), held_out=tuple(prompts), stop_tokens=()),
            lambda tokens: " ".join(map(str, tokens)),
            lambda instance, command: self.commands.append((instance, command)),
            layout=layout,
            launch=self,
            objects={},
        )

    def start(self, worker: WorkerSpec, replies: Any) -> Any:
        return self.worker

    def played_out(self, count: int, *, holds: bool) -> dict[int, Any]:
        """All samples, by number."""
        found: dict[int, Any] = {}
        self.played.begin()
        found.update(self.played.poll())
        assert not self.commands, "nothing is sent to an instance without the model"
        self.played.loaded(0)
        for _ in range(200):
            found.update(self.played.poll())
            while self.commands:
                self._obey(*self.commands.popleft(), holds=holds)
            if len(found) == count:
                return found
        raise AssertionError(f"of {count} samples {sorted(found)}")

    def _obey(self, instance: int, command: Any, *, holds: bool) -> None:
        match command:
            case messages.StartRequest(request=request):
                assert request.id not in self.requests
                self.requests[request.id] = [*request.prompt, *request.continued]
                self._draw(instance, request.id, holds=holds)
            case messages.ResumeRequest(request=id, tokens=tokens):
                self.requests[id] += tokens
                self._draw(instance, id, holds=holds)
            case messages.AbortRequest(request=id):
                del self.requests[id]

    def _draw(self, instance: int, id: int, *, holds: bool) -> None:
        # What was drawn is a checksum of all that is held: it tells whether the context was right.
        token = 100 + sum(self.requests[id])
        self.requests[id].append(token)
        if not holds:
            del self.requests[id]
        drawn = DrawnTokens(request=id, version=0, tokens=(token,), logprobs=(0.0,), cut_logprobs=())
        ended = messages.RequestEnded(drawn=drawn, clock=0.0, kv_tokens=0, finish="stop", is_held=holds)
        self.played.ended(instance, ended)


@pytest.mark.parametrize("holds", [True, False])
def test_episodes_are_played_to_their_ends_without_control(
    make_setup: MakeSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds: bool
) -> None:
    monkeypatch.setattr("dora_rl.run.episodes.host._RETRY_S", 0.0)
    settings = EpisodeSettings(function="mine:play", max_open=4, processes=1)
    setup = make_setup(episode=settings, evaluation=Evaluation(samples=2))
    stage = Stage(setup, 5, tmp_path)
    with stage.played:
        found = stage.played_out(10, holds=holds)

    # Behind 1 2 3 comes 106, behind that and 5 the sum of all.
    usual, branched = found[2 * USUAL], found[2 * BRANCHES]
    assert (usual.text, usual.num_turns, usual.num_tokens) == ("106 5 217", 2, 2)
    assert (usual.reward, usual.values) == (0.5, {"moves": 2.0})
    assert found[2 * FAILS_ONCE].text == usual.text, "the second attempt begins anew"
    assert branched.text == "106\n\n6 6 6 6 124", "another branch is generated behind its own context"
    for number in (2 * FAILS, 2 * NEVER_OPENS):
        failed = found[number]
        assert failed.reward is None
        assert [each.summary for each in failed.failures] == ["raised: KeyError: 'x'"]
    assert stage.worker.most_open == 4, "no more environments at a time than the recipe allows"
    assert not stage.requests, "an instance holds nothing of an episode that ended"
    assert not stage.worker.begun
