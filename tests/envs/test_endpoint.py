"""The endpoint's HTTP: who is let in, what is refused, what is counted, retries, streams, slow clients."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import pytest

aiohttp = pytest.importorskip("aiohttp")

from dora_rl.envs.chat.tool_calls import ToolCall  # noqa: E402
from dora_rl.envs.endpoint.endpoint_error import EndpointError  # noqa: E402

from .endpoint_client import Client, Echo, serving  # noqa: E402

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALLS = (ToolCall(id="a00000001", name="add", arguments={"a": 1, "b": [2]}), ToolCall(problem="No JSON."))


def looped(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test that is a coroutine."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 30.0))

    return run


async def refused(client: Client, status: int, code: str, path: str = "chat/completions", **body: Any) -> str:
    """The sentence with which a request is refused, in OpenAI's shape."""
    found, answer = await client.post(path, body)
    assert (found, answer["error"]["code"]) == (status, code), answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return str(answer["error"]["message"])


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# --- who is let in ------------------------------------------------------------------------------


@looped
async def test_only_the_episode_s_own_key_opens_it() -> None:
    async with serving() as (endpoint, open_client):
        mine, other = open_client("1", Echo()), open_client("2", Echo())
        assert await mine.says("hello") == "1.0: hello"
        for key in (other.key, "", "dora-", mine.key[:-1], mine.key + "x", "ключ"):
            stranger = Client(mine.session, mine.url, key)
            if key.isascii():
                said = await refused(stranger, 401, "invalid_api_key", messages=[user("hello")])
                assert "key" in said
        assert "no episode '7'" in await refused(
            Client(mine.session, endpoint.url("7"), mine.key), 404, "no_such_episode", messages=[user("a")]
        )
        endpoint.close("1")
        await refused(mine, 404, "no_such_episode", messages=[user("hello")])
        assert await other.says("still here") == "1.0: still here", "nobody else is hurt"


@looped
async def test_a_browser_that_was_led_here_under_another_name_is_refused() -> None:
    async with serving() as (endpoint, open_client):
        client = open_client("1", Echo())
        for host in ("evil.example", f"evil.example:{endpoint.port}", "127.0.0.1", "127.0.0.1:1", ""):
            status, answer = await client.post("chat/completions", {"messages": [user("a")]}, Host=host)
            assert (status, answer["error"]["code"]) == (403, "wrong_host"), host
        status, _ = await client.post(
            "chat/completions", {"messages": [user("a")]}, Host=f"localhost:{endpoint.port}"
        )
        assert status == 200


@looped
async def test_a_body_that_is_too_large_is_refused_however_it_is_sent() -> None:
    async with serving(max_body_bytes=1000) as (endpoint, open_client):
        client = open_client("1", Echo())
        said = await refused(client, 413, "request_too_large", messages=[user("a" * 2000)])
        assert "1000 bytes" in said

        async def unannounced() -> Any:
            for _ in range(20):
                yield b"a" * 100

        headers = {"Authorization": f"Bearer {client.key}"}
        url = f"{client.url}/chat/completions"
        async with client.session.post(url, data=unannounced(), headers=headers) as response:
            assert response.status == 413
        announced = await asyncio.open_connection("127.0.0.1", endpoint.port)
        head = f"Host: 127.0.0.1:{endpoint.port}\r\nAuthorization: Bearer {client.key}\r\n"
        line = "POST /e/1/v1/chat/completions HTTP/1.1\r\n"
        announced[1].write(f"{line}{head}Content-Length: 5000\r\n\r\n".encode())
        assert b"413" in await announced[0].readline(), "before any of it is sent"
        announced[1].close()
        assert await client.says("small") == "1.0: small"


@looped
async def test_a_slow_client_is_ended_and_hurts_nobody() -> None:
    async with serving(client_limit_s=0.3) as (endpoint, open_client):
        client = open_client("1", Echo())
        silent = await asyncio.open_connection("127.0.0.1", endpoint.port)
        headless = await asyncio.open_connection("127.0.0.1", endpoint.port)
        headless[1].write(b"POST /e/1/v1/chat/completions HTTP/1.1\r\nHost: 127")
        slow = await asyncio.open_connection("127.0.0.1", endpoint.port)
        head = f"Host: 127.0.0.1:{endpoint.port}\r\nAuthorization: Bearer {client.key}\r\nContent-Length: 99"
        slow[1].write(f"POST /e/1/v1/chat/completions HTTP/1.1\r\n{head}\r\n\r\n{{".encode())
        assert await client.says("quick") == "1.0: quick"
        assert await silent[0].read() == b""
        assert await headless[0].read() == b""
        answer = await slow[0].readuntil(b"}}")
        assert b"408" in answer.split(b"\r\n")[0]
        assert b"slow_client" in answer
        for _, writer in (silent, headless, slow):
            writer.close()


@looped
async def test_a_client_that_does_not_read_its_answer_is_ended_and_may_ask_again() -> None:
    async with serving(client_limit_s=0.5) as (endpoint, open_client):
        echo = Echo()
        echo.is_long = 1_000_000
        client = open_client("1", echo)
        body = json.dumps({"messages": [user("a")]})
        head = f"Host: 127.0.0.1:{endpoint.port}\r\nAuthorization: Bearer {client.key}\r\n"
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.connect(("127.0.0.1", endpoint.port))
        reader, writer = await asyncio.open_connection(sock=small, limit=1024)
        size = f"Content-Length: {len(body)}\r\n\r\n"
        writer.write(f"POST /e/1/v1/chat/completions HTTP/1.1\r\n{head}{size}{body}".encode())
        await reader.readuntil(b"\r\n")
        await asyncio.sleep(0.8)
        assert (await client.says("a")).startswith("1.0: a")
        assert len(echo.asked) == 1, "what was not delivered is given again"
        writer.close()


@looped
async def test_too_many_requests_are_refused_as_clients_understand_it() -> None:
    async with serving(requests_per_s=5, requests_at_once=3) as (_, open_client):
        echo = Echo()
        echo.may_answer.clear()
        client = open_client("1", echo)
        waiting = [asyncio.create_task(client.says(f"a {number}")) for number in range(3)]
        while len(echo.asked) < 3:
            await asyncio.sleep(0.01)
        said = await refused(client, 429, "rate_limit_exceeded", messages=[user("b")])
        assert "3 requests of this key are open" in said
        echo.may_answer.set()
        assert len(await asyncio.gather(*waiting)) == 3
        statuses = [(await client.post("chat/completions", {"messages": [user("c")]}))[0] for _ in range(9)]
        assert statuses[0] == 200
        assert statuses[-1] == 429
        assert await open_client("2", Echo()).says("other") == "1.0: other"


@looped
async def test_two_hundred_episodes_at_once_each_get_their_own() -> None:
    async with serving() as (_, open_client):
        clients = [open_client(str(number), Echo()) for number in range(200)]
        for turn in (1, 2):
            asked = [client.says(f"from {number}") for number, client in enumerate(clients)]
            assert await asyncio.gather(*asked) == [f"{turn}.0: from {number}" for number in range(200)]


# --- what is asked ------------------------------------------------------------------------------

REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"response_format": {"type": "json_object"}}, "unsupported"),
    ({"logit_bias": {"5": 1}}, "unsupported"),
    ({"logprobs": True}, "unsupported"),
    ({"functions": [{"name": "f"}]}, "unsupported"),
    ({"tools": [{"type": "web_search"}]}, "unsupported"),
    ({"tools": [{"type": "function"}]}, "invalid_request"),
    ({"temprature": 1}, "unknown_field"),
    ({"max_tokens": 0}, "invalid_request"),
    ({"max_tokens": "9"}, "invalid_request"),
    ({"n": 65}, "invalid_request"),
    ({"stop": [""]}, "invalid_request"),
    ({"messages": []}, "invalid_request"),
    ({"messages": "hello"}, "invalid_request"),
    ({"messages": ["hello"]}, "invalid_request"),
    ({"messages": [{"role": "wizard", "content": "a"}]}, "invalid_request"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "invalid_request"),
)


@looped
async def test_what_is_not_had_is_refused_with_a_sentence() -> None:
    async with serving() as (_, open_client):
        echo = Echo()
        client = open_client("1", echo)
        for fields, code in REFUSED:
            said = await refused(client, 400, code, **{"messages": [user("a")], **fields})
            assert next(iter(fields)).rstrip("s") in said or "tool" in said, said
        for body in (b"{", b"[]", b"\xff", b'"' + b"[" * 100_000):
            status, answer = await client.post("chat/completions", body)
            assert (status, answer["error"]["code"]) == (400, "invalid_json")
        for path in ("completions", "embeddings", ""):
            await refused(client, 404, "not_found", path)
        for fields in ({"input": "a", "previous_response_id": "x"}, {"input": [{"type": "item_reference"}]}):
            await refused(client, 400, "unsupported", "responses", **fields)
        assert not echo.asked


@looped
async def test_what_changes_nothing_is_taken_and_what_is_not_held_to_is_counted() -> None:
    async with serving() as (_, open_client):
        echo = Echo()
        client = open_client("1", echo)
        quiet = {"user": "me", "store": False, "logprobs": False, "response_format": {"type": "text"}}
        await client.chat("a", **quiet, stop=None, n=1, tool_choice="auto", logit_bias=None)
        assert not echo.counts
        await client.chat(
            "b", temperature=0, top_p=0.5, tool_choice="required", max_tokens=9, max_completion_tokens=7
        )
        assert echo.counts == {"sampling": 1, "tool_choice": 1}
        assert echo.asked[-1].max_tokens == 7
        assert echo.asked[-1].sampling == {"temperature": 0, "top_p": 0.5}
        await client.chat("c", stop="END", tools=[ADD | {"strict": True}])
        assert echo.asked[-1].stop == ("END",)
        assert echo.asked[-1].tools == (ADD,)
        _, models = await client.post("models", b"")
        assert [model["id"] for model in models["data"]] == ["echo"]


# --- retries ------------------------------------------------------------------------------------


@looped
async def test_a_retry_is_answered_once_and_a_repetition_is_a_new_draw() -> None:
    async with serving() as (_, open_client):
        echo = Echo()
        client = open_client("1", echo)
        assert await client.says("a") == "1.0: a"
        assert await client.says("a", headers={"x-stainless-retry-count": "1"}) == "1.0: a"
        assert await client.says("a", headers={"x-stainless-retry-count": "0"}) == "2.0: a"
        assert await client.says("b", headers={"x-stainless-retry-count": "2"}) == "3.0: b"
        assert echo.counts["retries"] == 1


@looped
async def test_a_client_that_hung_up_and_asks_again_gets_what_was_drawn() -> None:
    async with serving() as (_, open_client):
        echo = Echo()
        echo.may_answer.clear()
        client = open_client("1", echo)
        first = asyncio.create_task(client.says("a"))
        while not echo.asked:
            await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.sleep(0.05)
        again = asyncio.create_task(client.says({"role": "user", "content": [{"type": "text", "text": "a"}]}))
        await asyncio.sleep(0.05)
        echo.may_answer.set()
        assert await again == "1.0: a"
        assert len(echo.asked) == 1


@looped
async def test_equal_requests_side_by_side_are_two_draws() -> None:
    async with serving() as (_, open_client):
        echo = Echo()
        echo.may_answer.clear()
        client = open_client("1", echo)
        both = [asyncio.create_task(client.says("a")) for _ in range(2)]
        while len(echo.asked) < 2:
            await asyncio.sleep(0.01)
        echo.may_answer.set()
        assert set(await asyncio.gather(*both)) == {"1.0: a", "2.0: a"}


@looped
async def test_a_failure_is_not_what_a_retry_gets() -> None:
    class Failing(Echo):
        async def answers(self, asked: Any) -> Any:
            if not self.asked:
                self.asked.append(asked)
                raise EndpointError("not now", status=503, code="later")
            return await super().answers(asked)

    async with serving() as (_, open_client):
        client = open_client("1", Failing())
        assert await refused(client, 503, "later", messages=[user("a")]) == "not now"
        assert await client.says("a", headers={"x-stainless-retry-count": "1"}) == "2.0: a"


# --- answers ------------------------------------------------------------------------------------


@looped
async def test_an_answer_has_text_thinking_calls_usage_and_why_it_ended() -> None:
    async with serving() as (_, open_client):
        echo = Echo()
        client = open_client("1", echo)
        echo.thinking, echo.tool_calls = "well", CALLS
        answer = await client.chat("a", n=2)
        choices = answer["choices"]
        assert [choice["message"]["content"] for choice in choices] == ["1.0: a", "1.1: a"]
        message = choices[0]["message"]
        assert message["reasoning_content"] == "well"
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["add"]
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1, "b": [2]}
        assert choices[0]["finish_reason"] == "tool_calls"
        assert answer["usage"] == {"prompt_tokens": 10, "completion_tokens": 12, "total_tokens": 22}
        echo.finish = "length"
        assert (await client.chat("b"))["choices"][0]["finish_reason"] == "length"
        echo.finish, echo.tool_calls = "stop", ()
        assert (await client.chat("b"))["choices"][0]["finish_reason"] == "stop"


@looped
async def test_a_stream_puts_together_to_the_same_answer() -> None:
    async with serving() as (_, open_client):
        echo = Echo()
        client = open_client("1", echo)
        echo.thinking, echo.tool_calls, said = "well", CALLS, "long " * 40
        options = {"stream": True, "stream_options": {"include_usage": True}}
        events = await client.events("chat/completions", {"messages": [user(said)], **options})
        assert events[-1] == "[DONE]"
        assert events[-2]["choices"] == []
        assert events[-2]["usage"]["prompt_tokens"] == 10
        deltas = [event["choices"][0]["delta"] for event in events[:-2]]
        assert "".join(delta.get("content", "") for delta in deltas) == f"1.0: {said}"
        assert sum("content" in delta for delta in deltas) > 2
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "well"
        called = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert called[0]["id"] == "a00000001"
        assert json.loads("".join(each["function"]["arguments"] for each in called)) == {"a": 1, "b": [2]}
        assert events[-3]["choices"][0]["finish_reason"] == "tool_calls"


@looped
async def test_responses_are_the_same_in_their_own_words_whole_and_streamed() -> None:
    async with serving() as (_, open_client):
        echo = Echo()
        client = open_client("1", echo)
        echo.thinking, echo.tool_calls = "well", CALLS
        tool = {"type": "function", "strict": True, **ADD["function"]}
        body = {"input": "a", "instructions": "be brief", "tools": [tool], "max_output_tokens": 9}
        _, whole = await client.post("responses", body)
        assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
        asked = echo.asked[-1]
        assert asked.messages == ({"role": "system", "content": "be brief"}, user("a"))
        assert (asked.tools, asked.max_tokens) == ((ADD,), 9)
        events = await client.events("responses", {**body, "stream": True})
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[0]["type"] == "response.created"
        ended = events[-1]["response"]
        assert events[-1]["type"] == "response.completed"
        assert [item["type"] for item in ended["output"]] == [item["type"] for item in whole["output"]]
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "2.0: a"

        output = [*whole["output"], {"type": "function_call_output", "call_id": "a00000001", "output": "3"}]
        await client.post("responses", {**body, "input": [user("a"), *output]})
        calls = [{"id": "a00000001", "type": "function"}]
        calls[0]["function"] = {"name": "add", "arguments": '{"a":1,"b":[2]}'}  # type: ignore[assignment]
        said = [{"type": "output_text", "text": "1.0: a", "annotations": [], "logprobs": []}]
        assert echo.asked[-1].messages[2:] == (
            {"role": "assistant", "content": said, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "a00000001", "content": "3"},
        )


@looped
async def test_a_response_that_was_cut_says_so() -> None:
    async with serving() as (_, open_client):
        echo = Echo()
        echo.finish = "length"
        client = open_client("1", echo)
        _, cut = await client.post("responses", {"input": "a"})
        assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        events = await client.events("responses", {"input": "b", "stream": True})
        assert events[-1]["type"] == "response.incomplete"
