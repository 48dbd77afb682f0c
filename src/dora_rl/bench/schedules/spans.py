"""An event log becomes what costs are fitted to: stretches of decoding, steps, delays.

Follows one pass over a log. Knows what happened when; not what it should have cost.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct, field

from dora_rl.core import decisions as do
from dora_rl.core import inputs as told
from dora_rl.core.history import Event
from dora_rl.core.instance_spec import InstanceSpec
from dora_rl.core.record import Record

StreamName = tuple[int, int, int, int]
"""Epoch, row, member and attempt: what names a random stream within a run."""

_LEAST_S = 0.05
"""Least seconds of a stretch: reports come late by more than a round may take."""


class DecodingSpan(Record, frozen=True):
    """A stretch of decoding on one instance: its seconds and the work done in it."""

    at: float
    """Seconds of the run when the stretch was over."""
    seconds: float
    rounds: float
    """Decode rounds: tokens that each request gained."""
    row_rounds: float
    """Tokens that all requests together gained."""
    kv_token_rounds: float
    """Tokens of KV read, summed over the rounds."""
    starts: int
    """Number of requests that started in the stretch."""


class StepSpan(Record, frozen=True):
    """When one train step took its batch and published, and how long it trained."""

    taken_at: float
    published_at: float
    train_s: float
    tokens: int
    """Tokens trained on, prompts and responses."""


class _InstanceSpan(Struct, kw_only=True):
    """The requests on one instance, and the stretch of decoding that is not over."""

    since: float = 0.0
    clock: float = 0.0
    entered: dict[int, float] = field(default_factory=dict)
    """Tokens of each trajectory's prompt, less the decode clock when it came to this instance."""
    rounds: float = 0.0
    row_rounds: float = 0.0
    kv_token_rounds: float = 0.0
    starts: int = 0

    def begin(self, now: float) -> None:
        """Begin a new stretch of decoding."""
        self.since = now
        self.rounds = self.row_rounds = self.kv_token_rounds = 0.0
        self.starts = 0

    def advance(self, clock: float) -> None:
        """Count the tokens that all requests here gained until this decode clock."""
        rounds, rows = clock - self.clock, len(self.entered)
        middle = (clock + self.clock) / 2
        self.rounds += rounds
        self.row_rounds += rounds * rows
        self.kv_token_rounds += rounds * (sum(self.entered.values()) + rows * middle)
        self.clock = clock


class LogFacts(Struct, kw_only=True):
    """All that one run's event log says about costs."""

    decodings: list[DecodingSpan] = field(default_factory=list)
    steps: list[StepSpan] = field(default_factory=list)
    loads_s: list[float] = field(default_factory=list)
    scores_s: list[float] = field(default_factory=list)
    switches_s: list[float] = field(default_factory=list)
    """Seconds from the end of a step until an instance that had paused generates, each time."""
    specs: dict[int, InstanceSpec] = field(default_factory=dict)
    lengths: dict[StreamName, int] = field(default_factory=dict)
    """Tokens of each response, in the order they ended."""


class _LogReader:
    """Collects LogFacts from the events of a run, one after the other."""

    def __init__(self) -> None:
        self.facts = LogFacts()
        self._now = 0.0
        self._instances: dict[int, _InstanceSpan] = {}
        self._starts: dict[int, do.Start] = {}
        self._tokens: dict[int, int] = {}
        """Tokens of each group, prompts and responses."""
        self._taken: tuple[float, int] | None = None
        self._loading: dict[tuple[int, int], float] = {}
        self._scoring: dict[int, float] = {}
        self._returning: dict[int, float] = {}
        self._handlers: dict[type[Record], Callable[[Any], None]] = {
            told.InstanceJoined: self._joined,
            told.LoadReport: self._decoded,
            told.Ended: self._ended,
            told.Scored: self._scored,
            told.Loaded: self._loaded,
            told.Returned: self._returned,
            told.Published: self._published,
            do.Start: self._started,
            do.Load: self._load,
            do.Return: self._give_back,
            do.Take: self._took,
        }

    def watch(self, event: Event) -> None:
        happened, decisions = event
        self._now = happened.at
        for record in (happened, *decisions):
            handler = self._handlers.get(type(record))
            if handler is not None:
                handler(record)

    # --- decoding ---

    def _joined(self, event: told.InstanceJoined) -> None:
        self.facts.specs[event.instance] = event.spec
        self._instances[event.instance] = _InstanceSpan(since=self._now)

    def _started(self, start: do.Start) -> None:
        self._starts[start.trajectory] = start
        instance = self._instances[start.instance]
        if not instance.entered:
            instance.begin(self._now)
        instance.entered[start.trajectory] = start.prompt_tokens - instance.clock
        instance.starts += 1

    def _decoded(self, event: told.LoadReport | told.Ended) -> None:
        instance = self._instances[event.instance]
        if event.clock <= instance.clock:
            return  # Said again, or of the same round.
        if not instance.entered:
            instance.clock = event.clock
            return
        instance.advance(event.clock)
        if self._now - instance.since >= _LEAST_S:
            self._close(instance)

    def _close(self, instance: _InstanceSpan) -> None:
        if instance.rounds:
            self.facts.decodings.append(
                DecodingSpan(
                    at=self._now,
                    seconds=self._now - instance.since,
                    rounds=instance.rounds,
                    row_rounds=instance.row_rounds,
                    kv_token_rounds=instance.kv_token_rounds,
                    starts=instance.starts,
                )
            )
            instance.begin(self._now)

    def _ended(self, event: told.Ended) -> None:
        self._decoded(event)
        instance = self._instances[event.instance]
        instance.entered.pop(event.trajectory, None)
        if not instance.entered:
            self._close(instance)
        start = self._starts.pop(event.trajectory)
        self.facts.lengths[start.epoch, start.row, start.member, start.attempt] = event.tokens
        tokens = event.tokens + start.prompt_tokens
        self._tokens[start.group] = self._tokens.get(start.group, 0) + tokens
        self._scoring[event.trajectory] = self._now

    # --- delays ---

    def _scored(self, event: told.Scored) -> None:
        if (since := self._scoring.pop(event.trajectory, None)) is not None:
            self.facts.scores_s.append(self._now - since)

    def _load(self, decision: do.Load) -> None:
        self._loading[decision.instance, decision.version] = self._now

    def _loaded(self, event: told.Loaded) -> None:
        if (since := self._loading.pop((event.instance, event.version), None)) is not None:
            self.facts.loads_s.append(self._now - since)

    def _give_back(self, decision: do.Return) -> None:
        self._returning[decision.instance] = self._now

    def _returned(self, event: told.Returned) -> None:
        if (since := self._returning.pop(event.instance, None)) is not None:
            self.facts.switches_s.append(self._now - since)

    # --- steps ---

    def _took(self, take: do.Take) -> None:
        self._taken = self._now, sum(self._tokens.pop(group, 0) for group in take.groups)

    def _published(self, event: told.Published) -> None:
        assert self._taken is not None, f"version {event.version} was published without a batch"
        taken_at, tokens = self._taken
        self.facts.steps.append(
            StepSpan(taken_at=taken_at, published_at=self._now, train_s=event.train_s, tokens=tokens)
        )


def read_facts(events: Iterable[Event]) -> LogFacts:
    """What a run's event log says about costs, in one pass over it."""
    reader = _LogReader()
    for event in events:
        reader.watch(event)
    return reader.facts
