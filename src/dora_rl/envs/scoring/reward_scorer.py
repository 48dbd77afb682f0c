"""Calls reward functions; whatever they do becomes data.

Never raises for what a user's function does. A synchronous function is called where the caller stands, an
asynchronous one is awaited under the time limit.
"""

import asyncio
import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dora_rl.core.record import PlainValue
from dora_rl.envs.scoring.functions import RewardFunction
from dora_rl.envs.scoring.reward_messages import (
    ExtraColumn,
    FunctionScores,
    Metric,
    Per,
    Reason,
    RewardFailure,
    ScoreRequest,
    ScoreResult,
)

_DETAIL_CHARACTERS = 8000
_EXTRA_CHARACTERS = 2000
"""Characters that are kept of a text noted beside a completion."""
LARGEST = 1e15
"""Largest size of a weighted reward: sums and squares of it are finite, in single precision too."""

RAISED = (Exception, SystemExit, asyncio.CancelledError)
"""What ends a call of a user's function as a failure of that call: also SystemExit, and a cancellation from
within. An interrupt ends the process."""


class Scorer:
    """Calls the reward functions of a run, one after the other."""

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        *,
        time_limit_s: float,
        began: Callable[[int, RewardFunction], None],
    ) -> None:
        self._functions = functions
        self._time_limit_s = time_limit_s
        self._began = began

    def is_async(self, per: Per) -> bool:
        """Whether some function of kind `per` has to be awaited."""
        return any(function.is_async for function in self._of(per))

    def call_plain(self, request: ScoreRequest) -> "Scores":
        """Call every synchronous function and return their scores."""
        scores = Scores(request)
        for function in self._of(request.per):
            if not function.is_async:
                self._began(request.request, function)
                try:
                    scores.add(function, _called(function, scores))
                except RAISED as error:
                    scores.fail(function, "raised", _traceback(error))
        return scores

    async def call_async(self, scores: "Scores") -> None:
        """Call and await every asynchronous function, and add their scores to those of the others."""
        for function in self._of(scores.request.per):
            if function.is_async:
                self._began(scores.request.request, function)
                try:
                    async with asyncio.timeout(self._time_limit_s) as limit:
                        scores.add(function, await _called(function, scores))
                except RAISED as error:
                    if limit.expired():
                        scores.fail(function, "time limit", f"no answer within {self._time_limit_s:g} s")
                    else:
                        scores.fail(function, "raised", _traceback(error))

    def _of(self, per: Per) -> Iterable[RewardFunction]:
        return (function for function in self._functions if function.config.called_per == per)


class Scores:
    """The scores of one request so far: values, failures and logged metrics."""

    def __init__(self, request: ScoreRequest) -> None:
        self.request = request
        self._scores: list[FunctionScores] = []
        self._failures: list[RewardFailure] = []
        self._metrics: list[Metric] = []
        self._extras: dict[str, ExtraColumn] = {}

    def log_metric(self, name: str, value: float) -> None:
        """Note a value under a name; one that no mean could hold becomes NaN."""
        number = float(value)
        held = number if abs(number) <= LARGEST else math.nan
        self._metrics.append(Metric(name=str(name), value=held))

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Note one value for each completion under the name of a column; what is no plain value, as text."""
        num_items = len(self.request.items)
        if len(values) != num_items:
            raise ValueError(
                f"log_extra('{column}', ...) got {len(values)} values for {num_items} completions"
            )
        self._extras[str(column)] = ExtraColumn(name=str(column), values=tuple(map(_plain_extra, values)))

    def add(self, function: RewardFunction, values: Any) -> None:
        """Add the returned values as numbers, or a failure; arrays and tensors are turned into lists."""
        plain = values.tolist() if hasattr(values, "tolist") else values
        num_items = len(self.request.items)
        if not isinstance(plain, list | tuple):
            self.fail(function, "wrong result", f"returned {values!r:.200}, not a list")
            return
        if len(plain) != num_items:
            detail = f"returned {len(plain)} values for {num_items} completions"
            self.fail(function, "wrong result", detail)
            return
        for value in plain:
            if value is not None and (isinstance(value, str | bytes) or not hasattr(value, "__float__")):
                self.fail(function, "wrong result", f"returned {value!r:.200} for a reward")
                return
        numbers = tuple(None if value is None else float(value) for value in plain)
        if any(number is not None and not math.isfinite(number) for number in numbers):
            self.fail(function, "not finite", f"returned {plain!r:.200}")
            return
        weight = function.config.weight
        if any(number is not None and abs(weight * number) > LARGEST for number in numbers):
            self.fail(function, "too large", f"returned {plain!r:.200}, and a reward is at most {LARGEST:g}")
            return
        self._scores.append(FunctionScores(function=function.label, values=numbers))

    def fail(self, function: RewardFunction, reason: Reason, detail: str) -> None:
        """Note that a function gave no usable value, and why."""
        row = self.request.items[0].row.row
        failure = RewardFailure(
            function=function.label, row=row, reason=reason, detail=function.hidden(detail)
        )
        self._failures.append(failure)

    def result(self) -> ScoreResult:
        return ScoreResult(
            request=self.request.request,
            scores=tuple(self._scores),
            failures=tuple(self._failures),
            metrics=tuple(self._metrics),
            extras=tuple(self._extras.values()),
        )


def _called(function: RewardFunction, scores: Scores) -> Any:
    """Call a function with TRL's names and a list for every column of the rows; returns what it returns."""
    items = scores.request.items
    # A column that only some rows have is None for the others.
    columns = dict.fromkeys(name for item in items for name in item.row.columns)
    offered = {
        **{name: [item.row.columns.get(name) for item in items] for name in columns},
        "prompts": [item.row.prompt for item in items],
        "completions": [
            [{"role": "assistant", "content": item.text}] if item.row.is_conversational else item.text
            for item in items
        ],
        "completion_ids": [list(item.token_ids) for item in items],
        "trainer_state": scores.request.state,
        "log_metric": scores.log_metric,
        "log_extra": scores.log_extra,
    }
    return function.call(**function.arguments(offered))


def _plain_extra(value: Any) -> PlainValue:
    if isinstance(value, bool | None):
        return value
    if isinstance(value, int | float) and abs(value) <= LARGEST:
        return value
    return str(value)[:_EXTRA_CHARACTERS]


def _traceback(error: BaseException) -> str:
    # The end names the exception and the line; what is cut is the way there.
    return "".join(traceback.format_exception(error))[-_DETAIL_CHARACTERS:]
