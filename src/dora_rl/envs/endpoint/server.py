"""HTTP: requests let in, read, handed to who answers, and answers written.

    Host ─> path ─> key ─> limits ─> body ─> fields ─> answerer ─> whole, or server-sent events
     403     404    401     429     408, 413   400        400

Runs in the loop of its process. The socket is bound at once, so that the address is known before the loop
turns; connections wait until it does. A turn is there as a whole before the first byte of its answer is sent,
so that whatever goes wrong until then has an HTTP status.
"""

import asyncio
import errno
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from dora_rl.core.errors import UserError
from dora_rl.core.named import optional_module
from dora_rl.core.recipe.endpoints import EndpointSettings
from dora_rl.envs.endpoint.account import Account, Delivery
from dora_rl.envs.endpoint.answerer import Answerer
from dora_rl.envs.endpoint.chat_completions import ChatCompletions
from dora_rl.envs.endpoint.endpoint_error import EndpointError
from dora_rl.envs.endpoint.fields import Call, json_object
from dora_rl.envs.endpoint.responses import Responses

if TYPE_CHECKING:
    from aiohttp import web

_BACKLOG = 1024
_IDLE_S = 75.0
"""Seconds for which a connection may wait for its next request."""
_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_RETRY_MARKS = ("x-stainless-retry-count", "x-retry-count", "retry-attempt")
_MAY_GO_ON = (400, 404, 410, 429)
"""Errors after which a connection is kept: its client is who it says, and its request was read."""
_PAUSE_S = 0.02
_LEAVE_S = 1.0
"""Seconds that requests in progress have at the end."""


def aiohttp_web() -> Any:
    """The server's library; a UserError where it is missing."""
    return optional_module("aiohttp.web", needed_for="an endpoint", install="aiohttp")


class Endpoint:
    """A server for any number of accounts, each under a path of its own: `/e/NAME/v1`, or `/v1`."""

    def __init__(
        self,
        settings: EndpointSettings,
        loop: asyncio.AbstractEventLoop,
        *,
        port: int = 0,
        gives_logprobs: bool = False,
    ) -> None:
        """Bind the socket; may be called in any thread. Port 0 is one that is free."""
        aiohttp_web()
        self._ways: dict[str, ChatCompletions | Responses] = {
            "chat/completions": ChatCompletions(gives_logprobs=gives_logprobs),
            "responses": Responses(),
        }
        self._settings = settings
        self._loop = loop
        self._accounts: dict[str, Account] = {}
        self._silent: dict[Any, asyncio.TimerHandle] = {}
        """Connections that have sent no request yet, and when their time is up."""
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            self._socket = socket.create_server((settings.host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            raise UserError(
                f"the endpoint cannot listen on {settings.host}, port {port}: {error.strerror}",
                hint="give another port; 0 is one that is free"
                if is_taken
                else "give an address of this machine as the host, and a port that you may use",
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(), loop)

    def open(self, name: str, answerer: Answerer, *, key: str | None = None) -> Account:
        """Let requests for this name in, with a key that is drawn if none is given."""
        account = self._accounts[name] = Account(answerer, self._settings, key)
        return account

    def close(self, name: str) -> None:
        """Let no more requests for this name in."""
        self._accounts.pop(name, None)

    def url(self, name: str) -> str:
        """The base URL that a client of this name is given."""
        path = f"/e/{name}/v1" if name else "/v1"
        return f"http://{self._settings.public_host or self._settings.host}:{self.port}{path}"

    async def stop(self) -> None:
        """Close the socket and every connection."""
        await asyncio.wrap_future(self._serving)
        self._server.close()
        for timer in self._silent.values():
            timer.cancel()
        await self._http.shutdown(_LEAVE_S)

    async def _serve(self) -> None:
        self._http = aiohttp_web().Server(
            self._handle, access_log=None, keepalive_timeout=_IDLE_S, auto_decompress=False
        )
        self._server = await self._loop.create_server(self._connected, sock=self._socket)

    def _connected(self) -> Any:
        """The protocol of a new connection, which must send a whole head of a request in time."""
        connection = self._http()
        limit_s = self._settings.client_limit_s
        self._silent[connection] = self._loop.call_later(limit_s, self._give_up, connection)
        return connection

    def _give_up(self, connection: Any) -> None:
        del self._silent[connection]
        if connection.transport is not None:
            connection.transport.abort()

    # --- one request ----------------------------------------------------------------------------

    async def _handle(self, request: "web.BaseRequest") -> "web.StreamResponse":
        if (timer := self._silent.pop(request.protocol, None)) is not None:
            timer.cancel()
        try:
            return await self._answered(request)
        except EndpointError as error:
            refused = _json(error.body, status=error.status, headers=error.headers)
            if error.status not in _MAY_GO_ON:
                refused.force_close()
            return refused
        except asyncio.CancelledError:
            raise
        except Exception as error:  # A mistake of ours is this client's trouble only.
            traceback.print_exc(file=sys.stderr)
            what = f"the endpoint failed: {type(error).__name__}: {error}"
            return _json(EndpointError(what, status=500, code="endpoint_failed").body, status=500)

    async def _answered(self, request: "web.BaseRequest") -> "web.StreamResponse":
        self._check_host(request)
        account, path = self._admitted(request)
        if path == "models" or path.startswith("models/"):
            return _json(_models(account.answerer.model, path.partition("/")[2]))
        way = self._ways.get(path)
        if way is None:
            raise EndpointError(
                f"there is no '{path}' here; there are models, {', '.join(self._ways)}",
                status=404,
                code="not_found",
            )
        if request.method != "POST":
            raise EndpointError(f"'{path}' is asked with POST", status=405, code="method_not_allowed")
        with account.one_more():
            call = way.read(json_object(await self._body(request)))
            delivery = account.ask(call, is_retry=_is_retry(request), is_connected=_is_connected(request))
            return await self._deliver(request, way, call, delivery)

    async def _deliver(
        self, request: "web.BaseRequest", way: ChatCompletions | Responses, call: Call, delivery: Delivery
    ) -> "web.StreamResponse":
        await asyncio.wait([delivery.answers])
        if delivery.answers.cancelled():
            raise EndpointError("it is over: nothing is answered any more", status=410, code="gone")
        answers = delivery.answers.result()
        headers = {} if answers[0].model is None else {"X-Dora-Model": quote(answers[0].model, safe="@/")}
        response: web.StreamResponse
        if call.is_streamed:
            response = aiohttp_web().StreamResponse(headers=headers | {"Cache-Control": "no-cache"})
            response.content_type = "text/event-stream"
            parts: Iterable[bytes] = way.events(call, answers)
        else:
            parts = [whole := msgspec.json.encode(way.whole(call, answers))]
            response = aiohttp_web().StreamResponse(headers=headers)
            response.content_type = "application/json"
            response.content_length = len(whole)
        try:
            async with asyncio.timeout(self._settings.client_limit_s):
                await self._write(request, response, parts)
                delivery.is_delivered = _is_connected(request)()
        except (ConnectionError, TimeoutError):
            # Whoever does not read gets nothing more; the answer is kept for a retry.
            if request.transport is not None:
                request.transport.abort()
        return response

    @staticmethod
    async def _write(
        request: "web.BaseRequest", response: "web.StreamResponse", parts: Iterable[bytes]
    ) -> None:
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        await response.write_eof()
        # Written is what the system took, not what waits here for a client that does not read.
        while (transport := request.transport) is not None and transport.get_write_buffer_size():
            await asyncio.sleep(_PAUSE_S)

    # --- letting in -----------------------------------------------------------------------------

    def _check_host(self, request: "web.BaseRequest") -> None:
        """Refuse a browser that was led here under another name."""
        name, _, port = request.headers.get("Host", "").rpartition(":")
        own = {*_LOCAL, self._settings.host, f"[{self._settings.host}]", self._settings.public_host}
        if port != str(self.port) or name.lower() not in own:
            raise EndpointError(
                "the Host of the request is not this endpoint's", status=403, code="wrong_host"
            )

    def _admitted(self, request: "web.BaseRequest") -> tuple[Account, str]:
        """The account that a request is for, if it has the key, and the path behind `v1`."""
        match request.path.strip("/").split("/"):
            case ["e", name, "v1", *rest]:
                path = "/".join(rest)
            case ["v1", *rest]:
                name, path = "", "/".join(rest)
            case _:
                raise EndpointError(f"there is nothing at {request.path:.200}", status=404, code="not_found")
        account = self._accounts.get(name)
        if account is None:
            raise EndpointError(
                f"there is no episode '{name:.80}' here, or it is over", status=404, code="no_such_episode"
            )
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not account.has_key(given.strip()):
            what = "is not the one for this address" if given else "is missing"
            raise EndpointError(
                f"the key {what}: send it as 'Authorization: Bearer KEY'",
                status=401,
                code="invalid_api_key",
            )
        return account, path

    async def _body(self, request: "web.BaseRequest") -> bytes:
        limit = self._settings.max_body_bytes
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise EndpointError("the body is compressed, and is not read so", status=415, code="compressed")
        if (request.content_length or 0) > limit:
            raise _too_large(limit)
        read = bytearray()
        try:
            async with asyncio.timeout(self._settings.client_limit_s):
                async for part in _parts(request):
                    read += part
                    if len(read) > limit:
                        raise _too_large(limit)
        except TimeoutError as error:
            raise EndpointError(
                f"the body did not come within {self._settings.client_limit_s:g} s",
                status=408,
                code="slow_client",
            ) from error
        return bytes(read)


async def _parts(request: "web.BaseRequest") -> AsyncIterator[bytes]:
    async for part in request.content.iter_any():
        yield part


def _too_large(limit: int) -> EndpointError:
    return EndpointError(
        f"the request has more than {limit} bytes (max_body_bytes)",
        status=413,
        code="request_too_large",
    )


def _is_retry(request: "web.BaseRequest") -> bool:
    for mark in _RETRY_MARKS:
        with suppress(ValueError):
            if int(request.headers.get(mark, "0")) > 0:
                return True
    return False


def _is_connected(request: "web.BaseRequest") -> Any:
    def is_connected() -> bool:
        return request.transport is not None and not request.transport.is_closing()

    return is_connected


def _models(name: str, asked: str) -> dict[str, Any]:
    model = {"id": asked or name, "object": "model", "created": 0, "owned_by": "dora-rl"}
    return model if asked else {"object": "list", "data": [model]}


def _json(body: Any, *, status: int = 200, headers: Any = None) -> "web.Response":
    response: web.Response = aiohttp_web().Response(
        body=msgspec.json.encode(body), status=status, headers=headers, content_type="application/json"
    )
    return response
