"""Runs of a workload, timed from the first submission to the last token on the host."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dora_rl.engines.errors import EngineError
from dora_rl.engines.native.engine import NativeEngine
from dora_rl.engines.requests import Finished, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """How long the repeats of one run took."""

    num_tokens: int
    times_s: tuple[float, ...]

    @property
    def best_tokens_s(self) -> float:
        """Tokens a second of the quickest."""
        return self.num_tokens / min(self.times_s)

    @property
    def median_tokens_s(self) -> float:
        """Tokens a second of the one in the middle."""
        return self.num_tokens / statistics.median(self.times_s)


def timed(engine: NativeEngine, requests: Sequence[Request], repeats: int) -> Timed:
    """One run to warm up, then `repeats` that count."""
    run_s(engine, requests)
    times_s = tuple(run_s(engine, requests) for _ in range(repeats))
    return Timed(num_tokens=sum(each.stopping.max_new_tokens for each in requests), times_s=times_s)


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
