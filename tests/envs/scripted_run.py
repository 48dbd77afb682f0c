"""The run's side of episodes as a script: a codec of letters, and a policy that is a Python function."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dora_rl.envs.chat.codec import Parsed
from dora_rl.envs.chat.messages import Message, ToolSchema, tool_name
from dora_rl.envs.chat.tool_calls import ToolCall
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.episode_function import episode_function
from dora_rl.envs.episodes.episode_messages import (
    BeginEpisode,
    EpisodeBroken,
    EpisodeDone,
    EpisodeReply,
    OnceAsked,
    OnceDone,
    OnceRecorded,
    OnceRun,
    RoleAsked,
    RoleSaid,
    TurnAsked,
    TurnTaken,
)
from dora_rl.envs.episodes.judge import EpisodeJudge
from dora_rl.envs.episodes.limits import EpisodeLimits
from dora_rl.envs.episodes.role import Player
from dora_rl.envs.episodes.runner import EpisodeRunner

STOP = "\x03"
ROW = Row(row=7, prompt="What is six times seven?", columns={"answer": "42"})
LIMITS = EpisodeLimits(start_limit_s=20.0, call_limit_s=20.0)


def text(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


class LetterCodec:
    """A token is a letter; `[user]hello[assistant]` is a context. Implements Codec."""

    stop_ids = frozenset({ord(STOP)})

    def __init__(self, *, strips: bool = False) -> None:
        self._strips = strips

    def begin(self, messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()) -> list[int]:
        told = f"[tools]{','.join(map(tool_name, tools))}" if tools else ""
        return ids(told + _rendered(messages, thinks=not self._strips))

    def extend(
        self, ids_: Sequence[int], messages: Sequence[Message | str], tools: Sequence[ToolSchema] = ()
    ) -> list[int] | None:
        if self._strips and any(isinstance(each, str) or each["role"] == "user" for each in messages):
            return None
        bridge = "" if ids_[-1] == ord(STOP) else STOP
        return ids(bridge + _rendered(messages, thinks=True))

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSchema] = ()) -> Parsed:
        said = text(ids).removesuffix(STOP)
        thought = re.match(r"<(.*?)>", said)
        said = said.removeprefix(thought[0]) if thought else said
        calls = tuple(_call(each) for each in re.findall(r"CALL (\w+ .*)", said))
        return Parsed(text=said, thinking=thought[1] if thought else "", tool_calls=calls)


def _call(words: str) -> ToolCall:
    name, _, arguments = words.partition(" ")
    if not arguments.startswith("{"):
        return ToolCall(problem="The call is not valid JSON.")
    return ToolCall(id="abc", name=name, arguments=json.loads(arguments))


def _rendered(messages: Sequence[Message | str], *, thinks: bool) -> str:
    parts = []
    for each in messages:
        assert not isinstance(each, str)
        thought = f"<{each['reasoning_content']}>" if thinks and "reasoning_content" in each else ""
        end = STOP if each["role"] == "assistant" else ""
        parts.append(f"[{each['role']}]{thought}{each['content']}{end}")
    return "".join(parts) + "[assistant]"


Policy = Callable[[str], str]
"""The answer to a context; one that begins with `!` is a reason why there is none."""


def counting(context: str) -> str:
    """Answers with how many answers there are before."""
    return str(context.count("[assistant]") - 1)


class ScriptedRun:
    """Answers whatever episodes ask, remembers it, and answers what it remembers as before."""

    def __init__(
        self,
        policy: Policy = counting,
        *,
        delay_s: Callable[[TurnAsked], float] | None = None,
        role: Policy = counting,
    ) -> None:
        """`role` is what a version says that plays a role; if it begins with `!`, why it says nothing."""
        self._policy = policy
        self._role = role
        self.roles_asked: list[RoleAsked] = []
        self._delay_s = delay_s
        self.contexts: dict[tuple[int, int], list[int]] = {}
        self.taken: dict[tuple[int, int], tuple[TurnAsked, TurnTaken]] = {}
        """By branch and number, what was asked and answered."""
        self.once: dict[tuple[int, int], bytes] = {}
        self.said: list[EpisodeReply] = []
        self.num_drawn = 0
        self.tell: Callable[[Any], None] = lambda message: None
        self.ends: dict[int, asyncio.Future[EpisodeReply]] = {}

    def say(self, word: EpisodeReply) -> None:
        self.said.append(word)
        loop = asyncio.get_running_loop()
        match word:
            case TurnAsked():
                answer = self._turn(word)
                loop.call_later(self._delay_s(word) if self._delay_s else 0.0, self.tell, answer)
            case OnceAsked():
                place = (word.branch, word.number)
                named = {"episode": word.episode, "branch": word.branch, "number": word.number}
                known = self.once.get(place)
                loop.call_soon(self.tell, OnceRecorded(**named, value=known) if known else OnceRun(**named))
            case OnceDone():
                self.once[word.branch, word.number] = word.value
                named = {"episode": word.episode, "branch": word.branch, "number": word.number}
                loop.call_soon(self.tell, OnceRecorded(**named, value=word.value))
            case RoleAsked():
                self.roles_asked.append(word)
                loop.call_soon(self.tell, self._role_said(word))
            case EpisodeDone() | EpisodeBroken():
                self.ends.setdefault(word.episode, loop.create_future()).set_result(word)

    def _role_said(self, asked: RoleAsked) -> RoleSaid:
        said, named = self._role(text(asked.tokens)), {"branch": asked.branch, "number": asked.number}
        if said == "!context":
            return RoleSaid(episode=asked.episode, tokens=(), finish="context", **named)
        if said.startswith("!"):
            return RoleSaid(episode=asked.episode, tokens=(), finish="stop", problem=said[1:], **named)
        return RoleSaid(episode=asked.episode, tokens=tuple(ids(said + STOP)), finish="stop", **named)

    def _turn(self, asked: TurnAsked) -> TurnTaken:
        context = self.contexts.setdefault((asked.episode, asked.branch), [])
        assert asked.is_new == (not context), "a branch begins once"
        context += asked.tokens
        known = self.taken.get((asked.branch, asked.number))
        if known is not None:
            assert known[0].tokens == asked.tokens, "it asks as it did before"
            taken = known[1]
        else:
            taken = self._drawn(asked, self._policy(text(context)))
            self.taken[asked.branch, asked.number] = asked, taken
        context += taken.tokens
        return TurnTaken(
            episode=asked.episode,
            branch=asked.branch,
            number=asked.number,
            tokens=taken.tokens,
            finish=taken.finish,
        )

    def _drawn(self, asked: TurnAsked, answer: str) -> TurnTaken:
        self.num_drawn += 1
        finish: Any = answer[1:] if answer.startswith("!") else "stop"
        tokens = tuple(ids(answer + STOP)) if finish == "stop" else ()
        return TurnTaken(
            episode=asked.episode, branch=asked.branch, number=asked.number, tokens=tokens, finish=finish
        )

    def runner(
        self,
        function: Any,
        *,
        limits: EpisodeLimits = LIMITS,
        strips: bool = False,
        judge: EpisodeJudge | None = None,
        roles: Mapping[str, Player] | None = None,
    ) -> EpisodeRunner:
        made = EpisodeRunner(
            episode_function("test", function, {}),
            LetterCodec(strips=strips),
            limits,
            self.say,
            run="run",
            judge=judge,
            roles=roles,
        )
        self.tell = made.tell
        return made

    async def end_of(self, episode: int) -> EpisodeReply:
        return await asyncio.wait_for(
            self.ends.setdefault(episode, asyncio.get_running_loop().create_future()), 20.0
        )

    def asked(self) -> list[TurnAsked]:
        return [word for word in self.said if isinstance(word, TurnAsked)]


def begin(episode: int = 0, **choices: Any) -> BeginEpisode:
    return BeginEpisode(
        **{"episode": episode, "row": ROW, "epoch": 0, "member": 0, "attempt": 0, "seed": 1} | choices
    )


def play(
    function: Any,
    policy: Policy = counting,
    *,
    run: ScriptedRun | None = None,
    row: Row = ROW,
    member: int = 0,
    **choices: Any,
) -> Any:
    """The end of one episode, and the run that answered it."""
    run = run or ScriptedRun(policy)
    run.contexts.clear()
    run.ends.clear()

    async def played() -> Any:
        runner = run.runner(function, **choices)
        runner.tell(begin(row=row, member=member))
        end = await run.end_of(0)
        assert runner.num_open == 0
        return end

    return asyncio.run(played()), run
