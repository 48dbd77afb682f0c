"""An endpoint's requests answered by instances: messages to tokens, tokens to an answer, as the client says.

Nothing is trained, so a client's sampling holds. What the engine does not have is refused.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from dora_rl.core.errors import ConfigError, UserError
from dora_rl.core.recipe.generation import Sampling
from dora_rl.core.stream_key import StreamKey
from dora_rl.engines.requests import Request, Stopping
from dora_rl.envs.chat.codec import Codec
from dora_rl.envs.chat.messages import ToolSchema
from dora_rl.envs.endpoint.answerer import TurnAnswer
from dora_rl.envs.endpoint.endpoint_error import EndpointError
from dora_rl.envs.endpoint.turn_request import TurnRequest
from dora_rl.envs.episodes.turn import Turn
from dora_rl.run.serving.served_instances import DrawnResponse, RequestRefusal

_SEEDS = 1 << 64
_HELD_TO = ("temperature", "top_k", "top_p", "min_p")
_NEUTRAL: dict[str, object] = {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1}
"""Fields that the engine does not have, with the value at which they say nothing."""
_CALL_ID = 9
"""Characters of a call's id: some chat templates take no other number."""


class DrawsResponses(Protocol):
    """Whoever has a request generated."""

    @property
    def version(self) -> int:
        """The version that answers."""
        ...

    async def drawn(self, make: Callable[[int, int], Request]) -> DrawnResponse:
        """The whole response to a request, which is made from its id and its version."""
        ...


class EngineAnswers:
    """Answers requests by an engine's draws. Implements Answerer."""

    def __init__(
        self,
        codec: Codec,
        instances: DrawsResponses,
        *,
        context_tokens: int,
        stop_tokens: tuple[int, ...],
        stop_strings: tuple[str, ...],
        sampling: Sampling,
        token_text: Callable[[int], str],
        names: Mapping[int, str],
    ) -> None:
        """`stop_strings` and `sampling` are the run's own; `names` are those of versions, and may grow."""
        self._codec, self._instances = codec, instances
        self._context_tokens = context_tokens
        self._stop_tokens, self._stop_strings = stop_tokens, stop_strings
        self._sampling, self._token_text, self._names = sampling, token_text, names
        self.counts: Counter[str] = Counter()
        """Requests and tokens answered, retries, and fields that nothing was held to."""

    @property
    def model(self) -> str:
        return self._names[self._instances.version]

    def counted(self, what: str) -> None:
        self.counts[what] += 1

    async def answers(self, asked: TurnRequest) -> Sequence[TurnAnswer]:
        """As many draws as were asked for, behind the same prompt."""
        self.counted("requests")
        prompt = self._prompt(asked)
        sampling, seed = _sampling(self._sampling, asked.sampling), _seed(asked.sampling)
        left = self._context_tokens - len(prompt)
        stopping = Stopping(
            max_new_tokens=min(left, asked.max_tokens or left),
            stop_tokens=self._stop_tokens,
            stop_strings=(*self._stop_strings, *asked.stop),
        )
        group = secrets.randbits(32) if asked.num_answers > 1 else None

        def draw(member: int) -> Any:
            def request(id: int, version: int) -> Request:
                return Request(
                    id=id,
                    version=version,
                    prompt=prompt,
                    key=StreamKey(seed=seed, member=member),
                    stopping=stopping,
                    sampling=sampling,
                    group=group,
                )

            return self._instances.drawn(request)

        try:
            drawn = await asyncio.gather(*map(draw, range(asked.num_answers)))
        except RequestRefusal as error:
            raise EndpointError(f"the engine refuses it: {error.message}", code="refused") from error
        return [self._answer(each, asked, len(prompt)) for each in drawn]

    def _prompt(self, asked: TurnRequest) -> tuple[int, ...]:
        try:
            prompt = tuple(self._codec.begin(asked.messages, asked.tools))
        except UserError as error:
            hint = f" ({error.hint})" if error.hint else ""
            raise EndpointError(f"{error.message}{hint}", field="messages") from error
        if len(prompt) >= self._context_tokens:
            raise EndpointError(
                f"the conversation has {len(prompt)} tokens, and with its answer it may have "
                f"{self._context_tokens}",
                code="context_length_exceeded",
                field="messages",
            )
        return prompt

    def _answer(self, drawn: DrawnResponse, asked: TurnRequest, num_prompt_tokens: int) -> TurnAnswer:
        self.counts["tokens"] += len(drawn.tokens)
        turn = _turn(self._codec, drawn, asked.tools)
        logprobs = None
        if asked.wants_logprobs:
            logprobs = tuple(zip(map(self._token_text, drawn.tokens), drawn.logprobs, strict=True))
        return TurnAnswer(
            turn=turn,
            text=asked.before_stop(turn.text),
            num_prompt_tokens=num_prompt_tokens,
            model=self._names[drawn.version],
            logprobs=logprobs,
        )


def _turn(codec: Codec, drawn: DrawnResponse, tools: Sequence[ToolSchema]) -> Turn:
    """What was drawn as a turn, whose calls have ids that no other has."""
    parsed = codec.parse(drawn.tokens, tools)
    named = (msgspec.structs.replace(call, id=uuid4().hex[:_CALL_ID]) for call in parsed.tool_calls)
    parsed = msgspec.structs.replace(parsed, tool_calls=tuple(named))
    return Turn(
        text=parsed.text,
        thinking=parsed.thinking,
        tool_calls=parsed.tool_calls,
        message=parsed.message,
        finish=drawn.finish,
        tokens=drawn.tokens,
    )


def _sampling(own: Sampling, given: Mapping[str, Any]) -> Sampling:
    """How tokens are drawn: as the client says, and where it says nothing, as the run does."""
    for name in given.keys() - {*_HELD_TO, "seed"}:
        if name not in _NEUTRAL or given[name] != _NEUTRAL[name]:
            raise EndpointError(
                f"'{name}' is not had here: the engine has {', '.join(_HELD_TO)} and seed",
                field=name,
                code="unsupported",
            )
    asked = {name: given[name] for name in _HELD_TO if name in given}
    if asked.get("top_k", 1) in (0, -1):
        asked["top_k"] = None  # As other servers say "all".
    for name, value in asked.items():
        kinds = int | None if name == "top_k" else int | float
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise EndpointError(f"'{name}' is a number, not {value!r:.80}", field=name)
    try:
        return msgspec.structs.replace(own, **asked)
    except ConfigError as error:
        raise EndpointError(error.message) from error


def _seed(given: Mapping[str, Any]) -> int:
    seed = given.get("seed")
    if seed is None:
        return secrets.randbits(64)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise EndpointError(f"'seed' is a whole number, not {seed!r:.80}", field="seed")
    return seed % _SEEDS
