"""A client of OpenAI's chat completions, for judges and for roles that somebody else plays.

What is worth another try (the server is busy, the network fails) is tried again with growing pauses;
everything else is a failure with the server's words. Python's own HTTP client is enough, in threads of its
own: a model thinks longer than a connection takes.
"""

import asyncio
import json
import random
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

_AGAIN = {408, 409, 425, 429}
"""HTTP codes, beside those from 500 on, after which the same request may succeed."""
_LONGEST_PAUSE_S = 30.0
_SHOWN = 300


class EndpointFailed(Exception):
    """An endpoint gave no answer; the message says why."""


class ChatClient:
    """Asks one endpoint, many times at once; what a request says is the caller's."""

    def __init__(
        self,
        base_url: str,
        *,
        who: str,
        key: str | None = None,
        concurrent: int = 16,
        retries: int = 4,
        pause_s: float = 1.0,
        time_limit_s: float = 30.0,
    ) -> None:
        """`base_url` is what OpenAI's client would be given; `who` is what errors call whoever answers."""
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._who = who
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._retries, self._pause_s, self._time_limit_s = retries, pause_s, time_limit_s
        self._threads = ThreadPoolExecutor(max_workers=concurrent, thread_name_prefix="endpoint")
        self._opener = urllib.request.build_opener(_NoRedirect)

    async def ask(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Any], str]:
        """The first answer to a request, as a message, and why it ended; EndpointFailed where none comes."""
        loop = asyncio.get_running_loop()
        for number in range(self._retries + 1):
            try:
                return await loop.run_in_executor(self._threads, self._post, body, headers or {})
            except _Passing as error:
                if number == self._retries:
                    raise EndpointFailed(f"{error}, {number + 1} times") from None
                pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2**number)
                # Not all at once again.
                await asyncio.sleep(max(error.after_s, pause_s * random.uniform(0.5, 1.0)))
        raise AssertionError("the last try returns or raises")

    def _post(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[dict[str, Any], str]:
        whole = {**self._headers, **headers}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), whole, method="POST")
        try:
            with self._opener.open(request, timeout=self._time_limit_s) as response:
                answer = json.load(response)
            choice = answer["choices"][0]
            return dict(choice["message"]), str(choice.get("finish_reason") or "stop")
        except urllib.error.HTTPError as error:
            words = error.read(_SHOWN).decode(errors="replace").strip()
            told = f"{self._who} at {self._url} answered {error.code}: {words}"
            if error.code in _AGAIN or error.code >= 500:
                raise _Passing(told, _seconds(error.headers.get("Retry-After"))) from None
            raise EndpointFailed(told) from None
        except (OSError, HTTPException, json.JSONDecodeError, UnicodeDecodeError) as error:
            # No connection, one that broke in the middle, or half an answer.
            reason = f"{type(error).__name__}: {error}"
            raise _Passing(f"{self._who} at {self._url} cannot be asked: {reason}") from None
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EndpointFailed(
                f"{self._who} at {self._url} answered something else: {answer!r:.300}"
            ) from error


class _Passing(Exception):
    """A failure after which another try makes sense, at the earliest after so many seconds."""

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = min(after_s, _LONGEST_PAUSE_S)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the key is for the address that was given."""

    def redirect_request(self, *request: Any) -> None:
        return None


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or 0.0))
    except ValueError:  # A date: the usual pause will do.
        return 0.0
