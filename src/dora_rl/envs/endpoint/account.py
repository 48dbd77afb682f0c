"""One key's requests: how many at a time and a second, and which of them are retries.

A request is a retry if it is marked as one, or if the connection of its equal predecessor ended before that
was delivered; it gets its predecessor's answer. Any other request is a new draw, also one that equals another
whose client still waits.
"""

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from dora_rl.core.recipe.endpoints import EndpointSettings
from dora_rl.envs.endpoint.answerer import Answerer, TurnAnswer
from dora_rl.envs.endpoint.endpoint_error import EndpointError
from dora_rl.envs.endpoint.fields import Call

_KEPT = 256
"""Requests whose answers are kept for a retry; a client tries again within seconds."""


class Delivery(Struct, eq=False):
    """The answers to one request, and whether they reached its client."""

    answers: "asyncio.Task[Sequence[TurnAnswer]]"
    is_connected: Callable[[], bool]
    """Whether the client that waits for it, or waited last, is still there."""
    is_delivered: bool = False


class Account:
    """Who may ask with one key, and what was asked."""

    def __init__(self, answerer: Answerer, settings: EndpointSettings, key: str | None = None) -> None:
        """`key` is drawn if none is given."""
        self.answerer = answerer
        self.key = key or f"dora-{secrets.token_urlsafe(32)}"
        self._settings = settings
        self._num_open = 0
        self._allowance = max(settings.requests_per_s, 1.0)
        self._counted_at: float | None = None
        self._deliveries: OrderedDict[bytes, Delivery] = OrderedDict()
        """By content, the last request of each."""

    def has_key(self, given: str) -> bool:
        """Whether this is the key, found out in a time that does not depend on how much of it is right."""
        return hmac.compare_digest(given.encode(errors="replace"), self.key.encode())

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a request while it is answered; raises EndpointError where there are too many."""
        self._check_rate()
        if self._num_open >= self._settings.requests_at_once:
            raise EndpointError(
                f"{self._num_open} requests of this key are open, which are as many as may be at once "
                "(requests_at_once)",
                status=429,
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1

    def ask(self, call: Call, *, is_retry: bool, is_connected: Callable[[], bool]) -> Delivery:
        """Have a request answered, or find the answer of the one that it repeats."""
        found = self._deliveries.get(call.asked.content)
        if found is not None and (is_retry or not (found.is_delivered or found.is_connected())):
            self.answerer.counted("retries")
            found.is_connected = is_connected
            return found
        for hint in call.hints:
            self.answerer.counted(hint)
        if call.asked.sampling:
            self.answerer.counted("sampling")
        # A task of its own: the client may hang up and come back for what it gives.
        answers = asyncio.get_running_loop().create_task(_answers(self.answerer, call))
        return self._keep(call.asked.content, Delivery(answers, is_connected))

    def _keep(self, content: bytes, delivery: Delivery) -> Delivery:
        self._deliveries[content] = delivery
        self._deliveries.move_to_end(content)
        while len(self._deliveries) > _KEPT:
            self._deliveries.popitem(last=False)

        def forget_failure(task: "asyncio.Task[Sequence[TurnAnswer]]") -> None:
            is_failure = task.cancelled() or task.exception() is not None
            if is_failure and self._deliveries.get(content) is delivery:
                del self._deliveries[content]

        delivery.answers.add_done_callback(forget_failure)
        return delivery

    def _check_rate(self) -> None:
        rate, now = self._settings.requests_per_s, asyncio.get_running_loop().time()
        since_s = now - self._counted_at if self._counted_at is not None else 0.0
        self._counted_at = now
        # A second's worth may come at once.
        self._allowance = min(max(rate, 1.0), self._allowance + since_s * rate)
        if self._allowance < 1.0:
            raise EndpointError(
                f"more than {rate:g} requests a second came with this key (requests_per_s)",
                status=429,
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        self._allowance -= 1.0


async def _answers(answerer: Answerer, call: Call) -> Sequence[TurnAnswer]:
    return await answerer.answers(call.asked)
