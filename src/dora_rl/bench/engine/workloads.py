"""Requests of prescribed lengths, and runs of them, timed from the first submission to the last token.

A workload is written `64x256` (64 requests of 256 new tokens) or `256xtail` (256 requests with the first 256
lengths of a long-tailed list). All requests are there at once; prompts are distinct and random.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dora_rl.bench.sequence_lengths import SequenceLengths
from dora_rl.core.errors import ConfigError
from dora_rl.core.record import Record
from dora_rl.engines.errors import EngineError
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey

PROMPT_TOKENS = 128
_MEDIAN, _SIGMA = 300.0, 1.0
_MOST_REQUESTS = 1024


class RequestWorkload(Record, frozen=True):
    """Requests of one run: the tokens that each generates, and the length of the prompts."""

    name: str
    lengths: tuple[int, ...]
    prompt_tokens: int = PROMPT_TOKENS

    @property
    def num_tokens(self) -> int:
        """Tokens that all requests generate together."""
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt included."""
        return self.prompt_tokens + max(self.lengths)

    @property
    def total_tokens(self) -> int:
        """Tokens of all prompts and all responses."""
        return len(self.lengths) * self.prompt_tokens + self.num_tokens


def parse_workload(text: str, tail: tuple[int, ...], prompt_tokens: int = PROMPT_TOKENS) -> RequestWorkload:
    """The workload of this name; `tail` holds the lengths of the long-tailed ones."""
    count, _, length = text.partition("x")
    if not count.isdecimal() or not int(count) or not (length == "tail" or length.isdecimal()):
        raise ConfigError(f"'{text}' is no workload", hint="write 64x256 or 256xtail")
    if length != "tail":
        return RequestWorkload(name=text, lengths=(int(length),) * int(count), prompt_tokens=prompt_tokens)
    if int(count) > len(tail):
        raise ConfigError(f"'{text}' asks for more than the {len(tail)} lengths there are")
    return RequestWorkload(name=text, lengths=tail[: int(count)], prompt_tokens=prompt_tokens)


def long_tail(count: int = _MOST_REQUESTS, median: float = _MEDIAN) -> tuple[int, ...]:
    """Lengths from 16 to 4096 tokens with a long tail, the same at every call."""
    return tuple(SequenceLengths(count=count, median=median, sigma=_SIGMA).draw())


def read_lengths(path: Path) -> tuple[int, ...]:
    """Lengths from a file that holds a JSON list of them."""
    try:
        lengths = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"lengths cannot be read: {error}") from error
    if not isinstance(lengths, list) or not all(isinstance(each, int) and each > 0 for each in lengths):
        raise ConfigError(f"{path} holds no list of positive whole numbers")
    return tuple(lengths)


def requests_of(
    workload: RequestWorkload, *, vocab_size: int, versions: tuple[int, ...] = (0,)
) -> list[Request]:
    """The requests of a workload, sampled at temperature 1, dealt to `versions` in turn."""
    draw = random.Random(1)
    return [
        Request(
            id=number,
            version=versions[number % len(versions)],
            prompt=tuple(draw.choices(range(vocab_size), k=workload.prompt_tokens)),
            key=StreamKey(seed=1, row=number),
            sampling=Sampling(),
            stopping=Stopping(max_new_tokens=length, is_length_prescribed=True),
        )
        for number, length in enumerate(workload.lengths)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRuns:
    """Seconds of the repeats of one run."""

    num_tokens: int
    times_s: tuple[float, ...]

    @property
    def best_tokens_s(self) -> float:
        """Tokens a second of the quickest repeat."""
        return self.num_tokens / min(self.times_s)

    @property
    def median_tokens_s(self) -> float:
        """Tokens a second of the median repeat."""
        return self.num_tokens / statistics.median(self.times_s)


def timed(engine: NativeEngine, requests: Sequence[Request], repeats: int, least_s: float = 0.0) -> TimedRuns:
    """Time runs after one that warms up: `repeats`, and short ones again until `least_s` have passed."""
    times_s = timed_runs(lambda: run_s(engine, requests), repeats, least_s)
    return TimedRuns(num_tokens=sum(each.stopping.max_new_tokens for each in requests), times_s=times_s)


def timed_runs(run: Callable[[], float], repeats: int, least_s: float) -> tuple[float, ...]:
    """Seconds of runs after one that warms up: at least `repeats` and, together, at least `least_s`."""
    run()
    times_s: list[float] = []
    while len(times_s) < repeats or sum(times_s) < least_s:
        times_s.append(run())
    return tuple(times_s)


def run_s(engine: NativeEngine, requests: Sequence[Request]) -> float:
    """Seconds until every request has all its tokens."""
    begin = time.perf_counter()
    for request in requests:
        engine.submit(request)
    events = engine.run()
    took_s = time.perf_counter() - begin
    lengths = {each.id: each.stopping.max_new_tokens for each in requests}
    for event in events:
        if not isinstance(event, Finished):
            raise EngineError(f"request {event.id} failed: {event.message}", hint=event.hint)
        assert len(event.tokens) == len(event.logprobs) == lengths.pop(event.id)
    assert not lengths, f"{len(lengths)} requests did not end"
    return took_s
