"""The process of an instance that computes nothing: `python -m dora_rl.bench.episodes.scripted_instance`.

It speaks as an instance does: loads versions, takes turns that last as long as they are told to, holds their
KV, reports what was drawn. It notes when each request reached it, and when the reply that the request goes on
behind was there.
"""

import os
import struct
import sys
import time
from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path

from msgspec import Struct
from tokenizers import Tokenizer

from dora_rl.bench.episodes.timed_reply import replied_at
from dora_rl.core.instance_seconds import InstanceSeconds
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.engines.requests import DrawnTokens
from dora_rl.launch.channel import Channel
from dora_rl.run import messages as say
from dora_rl.run.run_layout import LiveLayout

STEP_S = 0.008
"""Seconds of a decode step, and so of a token."""
TURN_TOKENS = 40
PREFILL_TOKEN_S = 1e-5
"""Seconds that a token of prefill is said to have taken; none is waited for."""
_PRESSURE = 0.97
"""Share of its KV at which an instance says that there is soon none left."""
_READ_TOKENS = 64
"""Tokens at the end of a context that are read for the time of its reply."""
_ARRIVAL = struct.Struct("<dd")


class _Turn(Struct, kw_only=True):
    """A request on the instance: in a turn, or held behind one."""

    version: int
    context: int
    """Tokens of KV that it holds beside what it draws."""
    length: int = TURN_TOKENS
    """Tokens of the turn: less where no more are allowed."""
    num_told: int = 0
    """Tokens drawn in this turn that were told."""
    began_at: float | None = None
    """When the turn began; None while it is held."""

    def num_drawn(self, now: float) -> int:
        return min(self.length, int((now - self.began_at) / STEP_S)) if self.began_at is not None else 0


class ScriptedInstance:
    """Requests, the times at which their turns end, and the book of when they came."""

    def __init__(self, channel: Channel, begin: say.Begin) -> None:
        layout = LiveLayout(root=Path(begin.setup.run_directory))
        self._channel = channel
        self._end_token = begin.stop_tokens[0]
        self._letter = self._end_token + 20
        self._report_every_s = begin.setup.recipe.engine.report_every_s
        self._tokenizer = Tokenizer.from_file(str(layout.tokenizer))
        self._book = arrivals_file(layout.root, begin.number).open("ab")
        self._turns: dict[int, _Turn] = {}
        self._ends: list[tuple[float, int]] = []
        self._num_prefilled = 0
        limits = begin.setup.engine.limits
        self._kv_capacity = limits.num_blocks * limits.block_size
        self._began_at = time.monotonic()
        self._reported_at = 0.0

    def run(self) -> None:
        """Obey commands and end turns until told to stop."""
        while True:
            due_at = min(self._ends[0][0] if self._ends else 1e18, self._reported_at + self._report_every_s)
            command = self._channel.receive(max(1e-4, due_at - time.monotonic()))
            if isinstance(command, say.Stop):
                self._book.close()
                return
            self._obey(command)
            now = time.monotonic()
            while self._ends and self._ends[0][0] <= now:
                self._end(heappop(self._ends)[1], now)
            if now >= self._reported_at + self._report_every_s:
                self._report(now)

    def _obey(self, command: object) -> None:
        now = time.monotonic()
        match command:
            case None | say.DropVersion():
                pass
            case say.LoadVersion(version=version):
                self._channel.send(say.VersionLoaded(version=version, load_s=0.0))
            case say.StartRequest(request=request):
                context = (*request.prompt, *request.continued)
                self._note(context[-_READ_TOKENS:], now)
                self._num_prefilled += len(context)
                self._turns[request.id] = _Turn(version=request.version, context=len(context))
                self._begin(request.id, request.stopping.max_new_tokens, now)
            case say.ResumeRequest(request=id, tokens=tokens, max_new_tokens=limit):
                self._note(tokens[-_READ_TOKENS:], now)
                self._turns[id].context += len(tokens)
                self._num_prefilled += len(tokens)
                self._begin(id, limit, now)
            case say.AbortRequest(request=id):
                self._turns.pop(id, None)
            case _:
                raise AssertionError(f"a scripted instance knows no {command}")

    def _note(self, tokens: tuple[int, ...], now: float) -> None:
        if (at := replied_at(self._tokenizer.decode(list(tokens)))) is not None:
            self._book.write(_ARRIVAL.pack(at, now))

    def _begin(self, id: int, limit: int, now: float) -> None:
        turn = self._turns[id]
        turn.began_at, turn.num_told, turn.length = now, 0, min(TURN_TOKENS, limit)
        heappush(self._ends, (now + turn.length * STEP_S, id))

    def _end(self, id: int, now: float) -> None:
        turn = self._turns.get(id)
        if turn is None or turn.began_at is None:
            return
        drawn = self._drawn(id, turn, turn.length)
        turn.context, turn.began_at = turn.context + turn.length, None
        self._channel.send(
            say.RequestEnded(
                drawn=drawn,
                clock=self._clock(now),
                kv_tokens=self._kv_tokens(now),
                finish="stop" if turn.length == TURN_TOKENS else "length",
                is_held=True,
            )
        )

    def _report(self, now: float) -> None:
        self._reported_at = now
        drawn = [self._drawn(id, turn, turn.num_drawn(now)) for id, turn in self._turns.items()]
        self._channel.send(
            say.Report(
                clock=self._clock(now),
                kv_tokens=(kv_tokens := self._kv_tokens(now)),
                step_s=STEP_S,
                is_pressed=kv_tokens >= _PRESSURE * self._kv_capacity,
                drawn=tuple(each for each in drawn if each.tokens),
                seconds=InstanceSeconds(prefill_s=PREFILL_TOKEN_S * self._num_prefilled),
            )
        )

    def _drawn(self, id: int, turn: _Turn, until: int) -> DrawnTokens:
        """What a turn drew since it was last told of; the last token ends it."""
        count = max(0, until - turn.num_told)
        tokens = (self._letter,) * count
        if count and until == TURN_TOKENS:
            tokens = (*tokens[1:], self._end_token)
        turn.num_told += count
        return DrawnTokens(
            request=id, version=turn.version, tokens=tokens, logprobs=(-1.0,) * count, cut_logprobs=()
        )

    def _clock(self, now: float) -> float:
        return (now - self._began_at) / STEP_S

    def _kv_tokens(self, now: float) -> int:
        return sum(turn.context + turn.num_drawn(now) for turn in self._turns.values())


def arrivals_file(run_directory: Path, instance: int) -> Path:
    """The file in which an instance notes replies and when they reached it."""
    return run_directory / f"arrivals_{instance}.bin"


def read_arrivals(path: Path) -> Iterator[tuple[float, float]]:
    """When each reply was there, and when it reached the instance, in seconds of the machine's clock."""
    whole = path.read_bytes()
    yield from _ARRIVAL.iter_unpack(whole[: len(whole) // _ARRIVAL.size * _ARRIVAL.size])


def main(address: str) -> None:
    """Say what the instance can do, and obey commands until told to stop."""
    channel = Channel.connect(address, say.InstanceCommand)
    begin = channel.receive()
    assert isinstance(begin, say.Begin), f"the first message says what to open: {begin}"
    limits = begin.setup.engine.limits
    spec = InstanceSpec(
        slots=limits.max_running,
        kv_tokens=limits.num_blocks * limits.block_size,
        max_versions=begin.setup.engine.max_versions,
        moves_kv=False,
        parks=False,
    )
    channel.send(say.InstanceReady(spec=spec, pid=os.getpid()))
    ScriptedInstance(channel, begin).run()
    channel.leave()


if __name__ == "__main__":
    main(sys.argv[1])
