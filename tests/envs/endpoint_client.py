"""An endpoint in front of a scripted answerer, and a client that knows nothing but HTTP."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from dora_rl.core.recipe.endpoints import EndpointSettings
from dora_rl.envs.chat.messages import text_of
from dora_rl.envs.chat.tool_calls import ToolCall
from dora_rl.envs.endpoint.answerer import TurnAnswer
from dora_rl.envs.endpoint.server import Endpoint
from dora_rl.envs.endpoint.turn_request import TurnRequest
from dora_rl.envs.episodes.turn import Turn


class Echo:
    """Says how many draws there were and what it was told last. Implements Answerer."""

    model = "echo"

    def __init__(self) -> None:
        self.asked: list[TurnRequest] = []
        self.counts: Counter[str] = Counter()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.tool_calls: tuple[ToolCall, ...] = ()
        self.thinking = ""
        self.finish: Any = "stop"
        self.is_long = 1

    def counted(self, what: str) -> None:
        self.counts[what] += 1

    async def answers(self, asked: TurnRequest) -> Sequence[TurnAnswer]:
        self.asked.append(asked)
        number = len(self.asked)
        await self.may_answer.wait()
        said = text_of(asked.messages[-1].get("content"))
        texts = [f"{number}.{each}: {said}" * self.is_long for each in range(asked.num_answers)]
        return [
            TurnAnswer(
                turn=Turn(
                    text=text,
                    thinking=self.thinking,
                    tool_calls=self.tool_calls,
                    message={"role": "assistant", "content": text},
                    finish=self.finish,
                    tokens=tuple(range(len(text))),
                ),
                text=text,
                num_prompt_tokens=10,
            )
            for text in texts
        ]


class Client:
    """Asks one account of an endpoint."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str) -> None:
        self.session, self.url, self.key = session, url, key

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """The status and the JSON that a request is answered with."""
        given = {"Authorization": f"Bearer {self.key}", **headers}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(f"{self.url}/{path}", data=data, headers=given) as response:
            return response.status, await response.json()

    async def chat(self, *messages: Any, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        """The body of a chat completion that must succeed."""
        body = {"model": "policy", "messages": as_messages(messages), **fields}
        status, found = await self.post("chat/completions", body, **(headers or {}))
        assert status == 200, found
        return found

    async def says(self, *messages: Any, **fields: Any) -> str:
        """The text of the first choice."""
        return str((await self.chat(*messages, **fields))["choices"][0]["message"]["content"])

    async def events(self, path: str, body: Any) -> list[Any]:
        """The data of all events of a stream; the end mark as text."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with self.session.post(f"{self.url}/{path}", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            lines = (await response.text()).split("\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [each if each == "[DONE]" else json.loads(each) for each in data]


def as_messages(messages: Sequence[Any]) -> list[Any]:
    return [{"role": "user", "content": each} if isinstance(each, str) else each for each in messages]


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[Endpoint, Callable[[str, Any], Client]]]:
    """An endpoint, and a function that opens an account and gives a client of it."""
    endpoint = Endpoint(EndpointSettings(**settings), asyncio.get_running_loop())
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            def client(name: str, answerer: Any) -> Client:
                account = endpoint.open(name, answerer)
                return Client(session, endpoint.url(name), account.key)

            yield endpoint, client
    finally:
        await endpoint.stop()
