"""Tools of MCP servers: the policy calls what a server offers until it has nothing more to call.

    server: server.py                              a Python file, run as a process
    server: npx -y @some/server                    a command, or a list of its words
    server: https://host/mcp                       a server that runs elsewhere
    server: {command: [...], env: {...}, cwd: ...}

A connection belongs to one episode, or to all episodes of a process, as `per` says. What a tool answers, also
an error, is text to the policy; a server that cannot be reached or has gone is a failure of the environment.
"""

import asyncio
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

from dora_rl.core.errors import UserError
from dora_rl.core.named import did_you_mean, optional_module
from dora_rl.envs.adapters.first_messages import first_messages
from dora_rl.envs.chat.messages import Message, ToolSchema
from dora_rl.envs.chat.tool_calls import ToolCall
from dora_rl.envs.data.rows import Row
from dora_rl.envs.episodes.chat import Chat
from dora_rl.envs.episodes.turn import EpisodeTruncated

_KEYS = ("command", "url", "env", "cwd")


class McpEpisode:
    """Lets the policy call the tools of an MCP server; an episode."""

    def __init__(
        self,
        server: str | Sequence[str] | Mapping[str, Any],
        *,
        per: Literal["episode", "process"] = "episode",
        tools: Sequence[str] | None = None,
        reset_tool: str | None = None,
        reward_tool: str | None = None,
    ) -> None:
        """`server` is a Python file, a command, an URL, or a mapping with `command` or `url`.

        `per` says who shares a connection, and so a server's process. `tools` are the names of those that the
        policy may call; left out, all but the next two. `reset_tool` is called before the first turn, with
        the row's columns that it takes, and what it answers is shown; `reward_tool` is called at the end, and
        what it answers is a number.
        """
        self._server = _server(server)
        if per not in ("episode", "process"):
            raise UserError(f"an MCP server per '{per}'", hint="per: episode, or per: process")
        optional_module("mcp", needed_for="an MCP server", install="mcp")
        self._is_shared = per == "process"
        self._shared: McpConnection | None = None
        self._tools = tools
        self._reset_tool = reset_tool
        self._reward_tool = reward_tool

    async def __call__(self, chat: Chat, row: Row) -> float | None:
        """Play one episode; returns what the server says that it is worth, if it is asked."""
        connection = await self._connection()
        try:
            return await self._played(chat, row, connection)
        finally:
            if not self._is_shared:
                connection.close()

    async def _connection(self) -> "McpConnection":
        if not self._is_shared:
            return await McpConnection(self._server).opened()
        if self._shared is None or self._shared.is_gone:
            self._shared = McpConnection(self._server)
        return await self._shared.opened()

    async def _played(self, chat: Chat, row: Row, connection: "McpConnection") -> float | None:
        chat.environment = connection
        schemas = connection.schemas
        own = [name for name in (self._reset_tool, self._reward_tool) if name is not None]
        for name in (*own, *(self._tools or ())):
            if name not in schemas:
                raise ValueError(f"the server has no tool '{name}'; it has: {', '.join(schemas)}")
        offered = {name: schemas[name] for name in self._tools or schemas if name not in own}
        shown = None
        if self._reset_tool is not None:
            taken = schemas[self._reset_tool]["function"]["parameters"].get("properties", {})
            given = {"seed": chat.task_rng.getrandbits(31), **row.columns}
            arguments = {name: given[name] for name in taken if name in given}
            shown = await connection.result(self._reset_tool, arguments)
        try:
            turn = await chat.turn(first_messages(row.prompt, shown), tools=offered.values())
            while turn.tool_calls:
                turn = await chat.turn([await connection.answer(call, offered) for call in turn.tool_calls])
        except EpisodeTruncated:
            # What it has come to counts.
            pass
        return None if self._reward_tool is None else float(await connection.result(self._reward_tool, {}))


class McpConnection:
    """A session with one server, kept by a task of its own; any number of episodes may use it."""

    def __init__(self, server: Mapping[str, Any]) -> None:
        """Remember how to connect; nothing is started yet."""
        self._server = server
        self._closed = asyncio.Event()
        self._session: Any = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self.schemas: dict[str, ToolSchema] = {}
        """The server's tools in OpenAI's form, by name."""

    @property
    def is_gone(self) -> bool:
        """Whether the session is over."""
        return self._closed.is_set() or (self._task is not None and self._task.done())

    async def opened(self) -> "McpConnection":
        """The connection, when the server has said which tools it has."""
        if self._task is None:
            self._task = asyncio.create_task(self._kept())
        # Others may wait for it as well.
        await asyncio.shield(self._ready)
        return self

    def close(self) -> None:
        """End the session; a process that was started for it ends."""
        self._closed.set()

    async def result(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool answers; raises where it answers with an error."""
        text, is_error = await self._called(name, arguments)
        if is_error:
            raise RuntimeError(f"the tool '{name}' of the server failed: {text}")
        return text

    async def answer(self, call: ToolCall, offered: Collection[str]) -> Message:
        """Carry out a call of the policy's to one of these tools; whatever is wrong with it is text."""
        if call.problem is not None:
            content = f"error: {call.problem}"
        elif call.name not in offered:
            hint = did_you_mean(call.name, list(offered), "there are")
            content = f"error: there is no tool '{call.name}'; {hint}"
        else:
            text, is_error = await self._called(call.name, call.arguments)
            content = f"error: {text}" if is_error else text
        return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """The text that a tool answers with, and whether it is an error."""
        called = asyncio.ensure_future(self._session.call_tool(name, dict(arguments)))
        assert self._task is not None, "only an open connection is used"
        # A session whose server has gone may let its callers wait.
        await asyncio.wait({called, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not called.done():
            called.cancel()
            raise self._gone()
        try:
            result = called.result()
        except _refusals() as error:
            if _is_closed(error):
                raise self._gone() from error
            return str(error), True
        is_error = bool(getattr(result, "is_error", getattr(result, "isError", False)))
        return _text(result), is_error

    def _gone(self) -> ConnectionError:
        # Whoever asks for a connection next is given another one.
        self.close()
        return ConnectionError(f"the MCP server has gone: {self._server}")

    async def _kept(self) -> None:
        """Connect, and keep the session until it is closed: who opens it must be who ends it."""
        mcp = optional_module("mcp", needed_for="an MCP server", install="mcp")
        try:
            async with _transport(self._server) as streams, mcp.ClientSession(*streams[:2]) as session:
                await session.initialize()
                tools = (await session.list_tools()).tools
                self.schemas = {tool.name: _schema(tool) for tool in tools}
                self._session = session
                self._ready.set_result(None)
                await self._closed.wait()
        except Exception as error:
            # Told to those who wait for it; of one that was open, its callers notice.
            if not self._ready.done():
                self._ready.set_exception(
                    ConnectionError(f"the MCP server {self._server} does not answer: {error}")
                )


def from_mcp(server: str | Sequence[str] | Mapping[str, Any], **options: Any) -> McpEpisode:
    """An episode in which the policy calls tools of an MCP server: `train(episode=from_mcp("server.py"))`.

    The options are those of `episode.function: mcp`: per, tools, reset_tool, reward_tool. Without
    `reward_tool`, `rewards` judge what was said.
    """
    return McpEpisode(server, **options)


def _server(given: str | Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    match given:
        case Mapping():
            server = dict(given)
        case str() if given.startswith(("http://", "https://")):
            server = {"url": given}
        case str() if given.endswith(".py") and " " not in given:
            server = {"command": [sys.executable, given]}
        case str():
            server = {"command": shlex.split(given)}
        case _:
            server = {"command": list(given)}
    if isinstance(command := server.get("command"), str):
        server["command"] = shlex.split(command)
    if unknown := [key for key in server if key not in _KEYS]:
        raise UserError(
            f"an MCP server has no '{unknown[0]}'", hint=did_you_mean(unknown[0], list(_KEYS), "it has")
        )
    if not server.get("command") and not server.get("url"):
        raise UserError("an MCP server without a command or an url", hint="server: server.py")
    return server


def _transport(server: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
    if "url" in server:
        http = optional_module("mcp.client.streamable_http", needed_for="an MCP server", install="mcp")
        # Its name before version 1.25.
        connect: Any = getattr(http, "streamable_http_client", None) or http.streamablehttp_client
        return connect(server["url"])  # type: ignore[no-any-return]
    stdio = optional_module("mcp.client.stdio", needed_for="an MCP server", install="mcp")
    program, *arguments = server["command"]
    parameters = stdio.StdioServerParameters(
        command=program, args=arguments, env=server.get("env"), cwd=server.get("cwd")
    )
    return stdio.stdio_client(parameters)  # type: ignore[no-any-return]


def _schema(tool: Any) -> ToolSchema:
    parameters = getattr(tool, "input_schema", None) or tool.inputSchema
    described = {"name": tool.name, "description": tool.description or tool.name, "parameters": parameters}
    return {"type": "function", "function": described}


def _text(result: Any) -> str:
    parts = [getattr(part, "text", None) or f"[{part.type}]" for part in result.content]
    return "\n".join(parts)


def _refusals() -> tuple[type[Exception], ...]:
    """What is raised where a server refuses a call."""
    found = optional_module("mcp.shared.exceptions", needed_for="an MCP server", install="mcp")
    # Spelt in capitals from version 2 on.
    return (getattr(found, "MCPError", None) or found.McpError,)


def _is_closed(error: Exception) -> bool:
    code = getattr(getattr(error, "error", None), "code", None)
    return code == -32000
