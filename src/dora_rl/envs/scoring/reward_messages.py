"""What crosses the pipe between a run and the processes that score. Plain data, no pickle."""

from typing import Literal

from msgspec import field

from dora_rl.core.recipe.data import RewardConfig
from dora_rl.core.record import Record
from dora_rl.envs.data.rows import Row

_SUMMARY_CHARACTERS = 200

Per = Literal["trajectory", "group"]
Reason = Literal["raised", "not finite", "wrong result", "time limit", "process died"]


class Item(Record, frozen=True):
    """A completion and the row it answers."""

    row: Row
    text: str
    token_ids: tuple[int, ...]


class RewardFailure(Record, frozen=True):
    """A reward function that gave no usable value: data, not an exception."""

    function: str
    row: int
    reason: Reason
    detail: str
    """The traceback, or what was wrong in words."""

    @property
    def label(self) -> str:
        """The name this outcome is counted under."""
        return f"failed: reward {self.function}, {self.reason}"

    @property
    def summary(self) -> str:
        """What was wrong in one line: of a traceback, the exception and the first line of its message."""
        lines = self.detail.strip().splitlines() or [""]
        frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
        said = [line for line in lines[frames[-1] :] if not line.startswith(" ")] if frames else lines
        return (said or lines[-1:])[0].strip()[:_SUMMARY_CHARACTERS]


class FunctionScores(Record, frozen=True):
    """One function's values, one for each item; None where it does not apply."""

    function: str
    values: tuple[float | None, ...]


class Metric(Record, frozen=True):
    """What a reward function logged."""

    name: str
    value: float


class Needs(Record, frozen=True):
    """The columns a function cannot be called without."""

    function: str
    columns: tuple[str, ...]


class ToWorker(Record, frozen=True, tag=True):
    """Something a process is told."""


class SetUp(ToWorker, frozen=True):
    """The first message: what to import, and where from."""

    rewards: tuple[RewardConfig, ...]
    time_limit_s: float
    search_path: tuple[str, ...]
    objects: dict[str, bytes] = field(default_factory=dict)
    """What `object:LABEL` stands for, by label: functions of the user's that no file has."""


class ScoreRequest(ToWorker, frozen=True):
    """Call every function of this kind once: with one item, or with all the items of a group."""

    request: int
    per: Per
    items: tuple[Item, ...]


class FromWorker(Record, frozen=True, tag=True):
    """Something a process says."""


class Ready(FromWorker, frozen=True):
    """Everything is imported."""

    needs: tuple[Needs, ...]
    is_concurrent: bool
    """Some function is asynchronous, so many requests can wait at the same time."""


class Unusable(FromWorker, frozen=True):
    """The functions cannot be imported; another process could not either."""

    message: str
    hint: str | None


class Began(FromWorker, frozen=True):
    """A function was called: its time runs from here."""

    request: int
    function: str
    is_async: bool


class ScoreResult(FromWorker, frozen=True):
    """What the functions said. `scores` lacks those of `failures`."""

    request: int
    scores: tuple[FunctionScores, ...]
    failures: tuple[RewardFailure, ...] = ()
    metrics: tuple[Metric, ...] = ()


WorkerInput = SetUp | ScoreRequest
WorkerOutput = Ready | Unusable | Began | ScoreResult
