"""Several processes that score: submit requests, poll for results.

Every request submitted comes back exactly once, as a result or as a counted failure. A process that hangs
is killed, a process that dies is replaced; what it was working on is tried elsewhere, what it had not
begun just moves on. Nothing here blocks but `poll` with a time and `wait_ready`; an event loop watches
`fileno()` and wakes after `wait_s()`.
"""

import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from dora_rl.core.errors import DoraError, UserError
from dora_rl.envs.config import ScoringConfig
from dora_rl.envs.scoring.desk import Desk, Task
from dora_rl.envs.scoring.functions import check_columns
from dora_rl.envs.scoring.messages import (
    Began,
    Needs,
    Ready,
    Reason,
    RewardFailure,
    ScoreRequest,
    ScoreResult,
    Unusable,
    WorkerOutput,
)

_MAX_FAILED_STARTS = 3


class ScorerPool:
    """The processes of a run that call its reward functions."""

    def __init__(
        self,
        config: ScoringConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        replaced: Callable[[str], None] = lambda reason: None,
        log: Path | None = None,
    ) -> None:
        """`replaced` hears why a process was; what functions print goes to the log, else to stderr."""
        self._config = config
        self._clock = clock
        self._replaced = replaced
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._queue: deque[Task] = deque()
        self._results: list[ScoreResult] = []
        self._num_failed_starts = 0
        self._needs: tuple[Needs, ...] = ()
        self.num_restarts = 0
        """Processes replaced because they died or hung."""
        self._desks: list[Desk] = []
        for _ in range(config.processes):
            self._start()

    @property
    def pids(self) -> list[int]:
        return [desk.process.pid for desk in self._desks]

    @property
    def num_pending(self) -> int:
        """Requests submitted and not yet answered."""
        return len(self._queue) + sum(len(desk.tasks) for desk in self._desks) + len(self._results)

    def fileno(self) -> int:
        """Readable when `poll` has something to do."""
        return int(self._selector.fileno())

    def wait_s(self) -> float | None:
        """How long nobody needs to call `poll` unless `fileno` is readable; None is for ever."""
        due_at = min((desk.due_at for desk in self._desks), default=float("inf"))
        return None if due_at == float("inf") else max(0.0, due_at - self._clock())

    def submit(self, request: ScoreRequest) -> None:
        """Have it scored; the result comes out of `poll`."""
        assert request.items, f"request {request.request} has nothing to score"
        self._queue.append(Task(request=request))
        self._dispatch()

    def poll(self, timeout_s: float = 0.0) -> list[ScoreResult]:
        """What was finished since; waits up to `timeout_s` for something to be."""
        until = self._clock() + timeout_s
        while True:
            self._step(min(max(0.0, until - self._clock()), self._wait_limit_s()))
            if self._results or self._clock() >= until:
                results, self._results = self._results, []
                return results

    @property
    def is_ready(self) -> bool:
        """Whether a process has imported the functions."""
        return any(desk.is_ready for desk in self._desks)

    def wait_ready(self, columns: Iterable[str] | None = None) -> None:
        """Wait until the functions are imported; given the rows' columns, check that they are enough."""
        while not self.is_ready:
            self._step(self._wait_limit_s())
        if columns is not None:
            check_columns(self._needs, columns)

    def close(self) -> None:
        """End every process; what is pending is forgotten."""
        for desk in self._desks:
            desk.process.kill()
            desk.process.close()
        self._desks.clear()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step(self, timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            # One that was replaced a moment ago has nothing more to say.
            if key.data in self._desks:
                self._attend(key.data, events)
        for desk in list(self._desks):
            if desk.due_at <= self._clock():
                self._end_overdue(desk)
        self._dispatch()

    def _wait_limit_s(self) -> float:
        wait_s = self.wait_s()
        return 3600.0 if wait_s is None else wait_s

    def _attend(self, desk: Desk, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            desk.process.flush()
        # Asked before the last words are read, so that none can come after.
        is_gone = desk.process.is_gone
        for message in desk.process.receive():
            self._heard(desk, message)
        if is_gone or desk.process.has_hung_up:
            self._bury(desk)
        else:
            self._watch_writing(desk)

    def _heard(self, desk: Desk, message: WorkerOutput) -> None:
        desk.heard(self._clock())
        match message:
            case Began():
                desk.begin(message, self._clock())
            case ScoreResult():
                desk.end(message.request, self._clock())
                self._results.append(message)
            case Ready():
                self._num_failed_starts = 0
                self._needs = message.needs
                desk.open(is_concurrent=message.is_concurrent)
            case Unusable():
                raise UserError(message.message, hint=message.hint)

    def _bury(self, desk: Desk) -> None:
        """Its last words are read; what it was working on gets another chance."""
        reason = desk.process.exit_reason()
        for task in reversed(list(desk.tasks.values())):
            task.num_deaths += task.call is not None
            if task.num_deaths > self._config.retries:
                self._fail(task, "process died", f"the process that ran it {reason}")
            else:
                self._queue.appendleft(task)
        self._replace(desk, reason)

    def _end_overdue(self, desk: Desk) -> None:
        culprit = desk.overdue(self._clock())
        if culprit is not None:
            del desk.tasks[culprit.request.request]
            self._fail(culprit, "time limit", f"no answer within {self._config.time_limit_s:g} s")
            self._queue.extendleft(reversed(desk.tasks.values()))
            self._replace(desk, f"hung in {culprit.call.function}" if culprit.call else "hung")
        elif not desk.is_ready or not desk.process.is_answering:
            self._queue.extendleft(reversed(desk.tasks.values()))
            self._replace(desk, f"said nothing for {desk.silence_limit_s:g} s")

    def _fail(self, task: Task, reason: Reason, detail: str) -> None:
        assert task.call is not None, f"request {task.request.request} was not begun"
        failure = RewardFailure(
            function=task.call.function, row=task.request.items[0].row.row, reason=reason, detail=detail
        )
        self._results.append(ScoreResult(request=task.request.request, scores=(), failures=(failure,)))

    def _replace(self, desk: Desk, reason: str) -> None:
        self._num_failed_starts += not desk.is_ready
        for descriptor in desk.descriptors:
            self._selector.unregister(descriptor)
        desk.process.kill()
        desk.process.close()
        self._desks.remove(desk)
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            raise DoraError(
                f"the reward processes end before they can work: the last of {_MAX_FAILED_STARTS} {reason}",
                hint="import the reward functions in a Python of your own to see why"
                if self._log is None
                else f"their last words are in {self._log}",
            )
        self.num_restarts += 1
        self._replaced(reason)
        self._start()

    def _start(self) -> None:
        desk = Desk(self._config, self._clock(), self._log)
        self._desks.append(desk)
        for descriptor in desk.descriptors:
            self._selector.register(descriptor, selectors.EVENT_READ, desk)

    def _dispatch(self) -> None:
        while self._queue:
            desk = max(self._desks, key=lambda desk: desk.room)
            if desk.room <= 0:
                return
            desk.give(self._queue.popleft(), self._clock())
            self._watch_writing(desk)

    def _watch_writing(self, desk: Desk) -> None:
        writes = selectors.EVENT_WRITE if desk.process.has_unsent else 0
        self._selector.modify(desk.process.pipe, selectors.EVENT_READ | writes, desk)
