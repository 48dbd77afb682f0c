"""Messages between a run and the processes that score. Plain data, no pickle."""

from typing import Literal

from msgspec import field

from dora_rl.core.failure_line import failure_line
from dora_rl.core.recipe.data import RewardConfig
from dora_rl.core.record import PlainValue, Record
from dora_rl.envs.data.rows import Row

Per = Literal["trajectory", "group"]
Reason = Literal["raised", "not finite", "too large", "wrong result", "time limit", "process died"]


class Item(Record, frozen=True):
    """One completion to score, and the row it answers."""

    row: Row
    text: str
    token_ids: tuple[int, ...]


class RewardFailure(Record, frozen=True):
    """A failure of a reward function, as data: it gave no usable value."""

    function: str
    row: int
    reason: Reason
    detail: str
    """The traceback, or in words what was wrong."""

    @property
    def label(self) -> str:
        """The outcome that this failure is counted under."""
        return f"failed: reward {self.function}, {self.reason}"

    @property
    def summary(self) -> str:
        """The failure in one line: of a traceback, the exception and the first line of its message."""
        return failure_line(self.detail)


class FunctionScores(Record, frozen=True):
    """One reward function's values, one for each item; None where it does not apply."""

    function: str
    values: tuple[float | None, ...]


class Metric(Record, frozen=True):
    """One value that a reward function logged by name."""

    name: str
    value: float


class ExtraColumn(Record, frozen=True):
    """What a reward function noted about each item, by name: a column of the completions."""

    name: str
    values: tuple[PlainValue, ...]


class TrainerState(Record, frozen=True):
    """How far the run is, under the names that TRL's `trainer_state` has."""

    global_step: int = 0
    """Train steps that are done."""
    max_steps: int = 0
    """Train steps of the whole run."""
    epoch: float = 0.0
    """How often the train steps that are done would have gone through the rows."""


class Needs(Record, frozen=True):
    """The columns that one reward function cannot be called without."""

    function: str
    columns: tuple[str, ...]


class ToWorker(Record, frozen=True, tag=True):
    """A message to a process that scores."""


class SetUp(ToWorker, frozen=True):
    """The first message to a process that scores: what to import, and where from."""

    rewards: tuple[RewardConfig, ...]
    time_limit_s: float
    objects: dict[str, bytes] = field(default_factory=dict)
    """Functions named `object:LABEL` by label, pickled: those of the user's that no file has."""


class ScoreRequest(ToWorker, frozen=True):
    """Call every function of kind `per` once: with one item, or with all items of a group."""

    request: int
    per: Per
    items: tuple[Item, ...]
    state: TrainerState = TrainerState()


class FromWorker(Record, frozen=True, tag=True):
    """A message from a process that scores."""


class Ready(FromWorker, frozen=True):
    """The process has imported all reward functions."""

    needs: tuple[Needs, ...]
    is_concurrent: bool
    """Whether some function is asynchronous, so that many requests can wait at the same time."""


class Unusable(FromWorker, frozen=True):
    """The reward functions cannot be imported; another process could not either."""

    message: str
    hint: str | None


class Began(FromWorker, frozen=True):
    """A reward function was called: its time limit runs from here."""

    request: int
    function: str
    is_async: bool


class ScoreResult(FromWorker, frozen=True):
    """The values of the reward functions for one request; those in `failures` have no `scores`."""

    request: int
    scores: tuple[FunctionScores, ...]
    failures: tuple[RewardFailure, ...] = ()
    metrics: tuple[Metric, ...] = ()
    extras: tuple[ExtraColumn, ...] = ()


WorkerInput = SetUp | ScoreRequest
WorkerOutput = Ready | Unusable | Began | ScoreResult
