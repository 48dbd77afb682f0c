"""Agents that know OpenAI's interface only, unchanged: a program, or a Python function.

    def solve(row, base_url, api_key):          # or async
        client = OpenAI(base_url=base_url, api_key=api_key)
        ...
        return answer                           # the reward, or what `reward` judges

A program finds the URL and the key in its environment and the row in its input; the last line that it prints
may be its result, in JSON. An agent that fails is a failed environment, and is tried again; one that fails
because it was refused a turn is truncated.
"""

import json
import os
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dora_rl.core.errors import UserError
from dora_rl.core.keywords import Keywords, keywords_of
from dora_rl.core.named import load_named
from dora_rl.envs.adapters.agent_program import AgentFailed, AgentPrograms
from dora_rl.envs.data.rows import Row
from dora_rl.envs.endpoint.server import aiohttp_web
from dora_rl.envs.episodes.agent_turns import MODEL
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.sandbox.sandbox import Sandbox

Command = str | Sequence[str]
"""A program and its arguments, or a line for the shell."""

_OUTPUT_BYTES = 1 << 20
_SHOWN = 2000
_ROW_FILE = "row.json"
_TO_AGENT = ("row", "base_url", "api_key", "model")
_TO_REWARD = ("row", "result", "output", "messages", "conversations", "is_truncated", "log_metric")


class AgentResult(Struct, frozen=True, kw_only=True):
    """What an agent gave: a value, and what its program printed."""

    value: Any = None
    output: str = ""


class AgentReward:
    """What an agent gave, judged: by a function, or taken as it is."""

    def __init__(self, function: str | Callable[..., Any] | None) -> None:
        """`function` is the user's, or its name; None where what the agent gives is the reward."""
        aiohttp_web()  # A sentence now, not a failure of every episode.
        self._judge = None if function is None else _Called(function, "the agent's reward", _TO_REWARD)

    async def of(self, playing: Coroutine[Any, Any, AgentResult], chat: Chat, row: Row) -> float | None:
        """The reward of an episode that is being played; where it was refused a turn, for what there is."""
        try:
            result = await playing
        except Exception:  # whatever an agent raises
            if not chat.is_truncated:
                raise
            result = AgentResult()
        if self._judge is None:
            value = result.value
            return value.get("reward") if isinstance(value, Mapping) else value
        conversations = chat.conversations
        offered = {
            "row": row,
            "result": result.value,
            "output": result.output,
            "messages": conversations[-1] if conversations else [],
            "conversations": conversations,
            "is_truncated": chat.is_truncated,
            "log_metric": chat.log_metric,
        }
        reward: float | None = await chat.call(self._judge.function, **self._judge.chosen(offered))
        return reward


class AgentEpisode:
    """Lets an agent play an episode over HTTP; an episode."""

    def __init__(
        self,
        *,
        agent: str | Callable[..., Any] | None = None,
        command: Command | None = None,
        reward: str | Callable[..., Any] | None = None,
        variables: Mapping[str, str] | None = None,
        directory: str | None = None,
    ) -> None:
        """`agent` is a function or its name, `command` a program; one of them.

        `reward` is a function of what the agent gave, or its name; without it, what the agent gives is the
        reward. `variables` are added to a program's environment; it starts in `directory`.
        """
        if (agent is None) == (command is None):
            raise UserError(
                "an agent is either a function or a program",
                hint="give one of them: agent: file.py:function, or command: [python, agent.py]",
            )
        self._agent = None if agent is None else _Called(agent, "the agent", _TO_AGENT)
        self._argv = _argv(command) if command is not None else ()
        self._reward = AgentReward(reward)
        self._variables = dict(variables or {})
        self._directory = None if directory is None else Path(directory)
        self._programs: AgentPrograms | None = None

    async def __call__(self, chat: Chat, row: Row) -> float | None:
        """Play one episode; returns its reward, if there is one."""
        playing = self._ran(chat, row) if self._agent is None else self._called(chat, row)
        return await self._reward.of(playing, chat, row)

    def close(self) -> None:
        """End whatever programs are left."""
        if self._programs is not None:
            self._programs.close()

    async def _called(self, chat: Chat, row: Row) -> AgentResult:
        assert self._agent is not None, "the agent is a function"
        offered = {"row": row, "base_url": chat.base_url, "api_key": chat.api_key, "model": MODEL}
        return AgentResult(value=await chat.call(self._agent.function, **self._agent.chosen(offered)))

    async def _ran(self, chat: Chat, row: Row) -> AgentResult:
        # Not made with the episode, which may come here from another process.
        self._programs = self._programs or AgentPrograms(output_bytes=_OUTPUT_BYTES)
        content = msgspec.json.encode(row)
        with tempfile.TemporaryDirectory(prefix="dora-agent-") as place:
            file = Path(place) / _ROW_FILE
            file.write_bytes(content)
            output = await self._programs.run(
                self._argv,
                stdin=content,
                variables={**_variables(chat), "DORA_ROW_FILE": str(file), **self._variables},
                directory=self._directory,
            )
        return AgentResult(value=_last_line(output), output=output)


class SandboxedAgentEpisode:
    """Lets an agent that runs what the policy writes play an episode, in a sandbox; an episode."""

    def __init__(
        self,
        *,
        command: Command,
        files: Sequence[str] = (),
        reward: str | Callable[..., Any] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`files` are copied to where the program starts: it sees none beside them, the system and Python."""
        missing = next((each for each in files if not Path(each).is_file()), None)
        if missing is not None:
            raise UserError(f"there is no file {missing} for the agent", hint="give paths of files")
        # Where it starts a file has its bare name, whatever path the command has it by.
        self._argv = tuple(Path(each).name if each in files else each for each in _argv(command))
        self._files = {Path(each).name: Path(each).read_bytes() for each in files}
        self._reward = AgentReward(reward)
        self._variables = dict(variables or {})

    async def __call__(self, chat: Chat, row: Row, sandbox: Sandbox) -> float | None:
        """Play one episode in a box of its own; returns its reward, if there is one."""
        return await self._reward.of(self._ran(sandbox, chat, row), chat, row)

    async def _ran(self, sandbox: Sandbox, chat: Chat, row: Row) -> AgentResult:
        content = msgspec.json.encode(row)
        # Its time is the episode's, which ends it.
        ended = await sandbox.limited(wall_s=None, cpu_s=None).run_with_endpoint(
            self._argv,
            port=urlsplit(chat.base_url).port or 0,
            stdin=content,
            files={**self._files, _ROW_FILE: content},
            environment={**_variables(chat), "DORA_ROW_FILE": _ROW_FILE, **self._variables},
        )
        if not ended.is_good:
            raise AgentFailed(f"the agent's program failed:\n{ended.text[-_SHOWN:]}")
        return AgentResult(value=_last_line(ended.stdout), output=ended.stdout)


def from_agent(
    agent: Command | Callable[..., Any],
    *,
    reward: str | Callable[..., Any] | None = None,
    variables: Mapping[str, str] | None = None,
    directory: str | None = None,
    sandboxed: bool = False,
    files: Sequence[str] = (),
) -> AgentEpisode | SandboxedAgentEpisode:
    """An episode that an agent plays over HTTP: `train(episode=from_agent(solve, reward=judge))`.

    `agent` is a function that gets those of `row`, `base_url`, `api_key` and `model` that it takes, or a
    program: a list, or a line for the shell. A program that runs what the policy writes should be
    `sandboxed`, with the `files` that it needs.
    """
    if sandboxed or files:
        if callable(agent) or directory is not None or not sandboxed:
            raise UserError(
                "only a program can be sandboxed, where it has files, and no directory of its own",
                hint='write from_agent(["python", "agent.py"], sandboxed=True, files=["agent.py"])',
            )
        return SandboxedAgentEpisode(command=agent, files=files, reward=reward, variables=variables)
    given: dict[str, Any] = {"agent": agent} if callable(agent) else {"command": agent}
    return AgentEpisode(**given, reward=reward, variables=variables, directory=directory)


class _Called:
    """A function of the user's, and the keywords it takes of those it is offered."""

    def __init__(self, function: str | Callable[..., Any], what: str, offered: Sequence[str]) -> None:
        self.function = load_named(function) if isinstance(function, str) else function
        if not callable(self.function):
            raise UserError(f"{what} '{function}' is not a function", hint="name one: file.py:function")
        self._keywords: Keywords = keywords_of(self.function, what, offered=offered, options={})
        if self._keywords.required:
            raise UserError(
                f"{what} needs '{self._keywords.required[0]}', which nothing gives it",
                hint=f"it may take {', '.join(offered)}",
            )

    def chosen(self, offered: Mapping[str, Any]) -> dict[str, Any]:
        return self._keywords.chosen(offered)


def _argv(command: Command) -> tuple[str, ...]:
    argv = ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(map(str, command))
    if not argv or not argv[-1].strip():
        raise UserError("the agent's command is empty", hint="give one: command: [python, agent.py]")
    return argv


def _variables(chat: Chat) -> dict[str, str]:
    """How a program reaches the policy; a proxy that the machine has for the world is not for this."""
    local = "127.0.0.1,localhost"
    direct = ",".join(filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), local)))
    return {
        "OPENAI_BASE_URL": chat.base_url,
        "OPENAI_API_KEY": chat.api_key,
        "OPENAI_MODEL": MODEL,
        "NO_PROXY": direct,
        "no_proxy": direct,
    }


def _last_line(output: str) -> Any:
    """The value of the last line that was printed, if it is JSON; None otherwise."""
    lines = output.strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
