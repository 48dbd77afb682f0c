"""Several reward workers: submit requests, poll for results.

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
from dora_rl.core.named import Objects
from dora_rl.core.recipe.data import ScoringConfig
from dora_rl.envs.scoring.functions import check_columns
from dora_rl.envs.scoring.reward_messages import (
    Began,
    Needs,
    Ready,
    Reason,
    RewardFailure,
    ScoreRequest,
    ScoreResult,
    SetUp,
    Unusable,
    WorkerOutput,
)
from dora_rl.launch.local import LOCAL
from dora_rl.launch.protocol import Launch, Place, WorkerSpec
from dora_rl.run.rewards.pool_worker import PoolWorker, ScoreTask

_MAX_FAILED_STARTS = 3
_EXIT_S = 1.0
"""Seconds to wait for a process whose socket has closed: that happens a moment before it has ended."""


class ScorerPool:
    """The processes of a run that call its reward functions."""

    def __init__(
        self,
        config: ScoringConfig,
        *,
        launch: Launch = LOCAL,
        objects: Objects | None = None,
        clock: Callable[[], float] = time.monotonic,
        replaced: Callable[[str], None] = lambda reason: None,
        log: Path | None = None,
    ) -> None:
        """`replaced` is told why a process was replaced; without a log, functions print to stderr."""
        self._config = config
        self._launch = launch
        self._objects = objects or {}
        self._clock = clock
        self._replaced = replaced
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._queue: deque[ScoreTask] = deque()
        self._results: list[ScoreResult] = []
        self._num_failed_starts = 0
        self._needs: tuple[Needs, ...] = ()
        self.num_restarts = 0
        """Reward processes replaced because they died or hung."""
        self._workers: list[PoolWorker] = []
        for _ in range(config.processes):
            self._start()

    @property
    def num_pending(self) -> int:
        """Requests submitted and not yet answered."""
        return len(self._queue) + sum(len(worker.tasks) for worker in self._workers) + len(self._results)

    def fileno(self) -> int:
        """Readable when `poll` has something to do."""
        return int(self._selector.fileno())

    def wait_s(self) -> float | None:
        """How long nobody needs to call `poll` unless `fileno` is readable; None is for ever."""
        due_at = min((worker.due_at for worker in self._workers), default=float("inf"))
        return None if due_at == float("inf") else max(0.0, due_at - self._clock())

    def submit(self, *requests: ScoreRequest) -> None:
        """Have requests scored, behind those that wait for a worker with room; results come out of `poll`."""
        assert all(request.items for request in requests), f"nothing to score in {requests}"
        self._queue.extend(ScoreTask(request=request) for request in requests)
        while self._queue:
            worker = max(self._workers, key=lambda worker: worker.room)
            if worker.room <= 0:
                return
            if not worker.tasks:
                worker.heard(self._clock())  # An idle process has nothing to say.
            task = self._queue.popleft()
            task.call = None
            worker.tasks[task.request.request] = task
            worker.handle.send(task.request)

    def poll(self, timeout_s: float = 0.0) -> list[ScoreResult]:
        """Results since the last call; waits up to `timeout_s` seconds for the first."""
        until = self._clock() + timeout_s
        while True:
            for key, _ in self._selector.select(min(max(0.0, until - self._clock()), self._wait_limit_s())):
                worker: PoolWorker = key.data
                if worker not in self._workers:
                    continue  # Replaced a moment ago, it has nothing more to say.
                worker.handle.flush()
                for message in worker.handle.receive():
                    worker.heard(self._clock())
                    match message:
                        case Began() | ScoreResult() if message.request not in worker.tasks:
                            # A copy of the process that a function made, and that answers too.
                            self._bury(worker, f"spoke of request {message.request}, which it does not have")
                            break
                        case Began():
                            worker.begin(message, self._clock())
                        case ScoreResult():
                            worker.end(message.request, self._clock())
                            self._results.append(message)
                        case Ready():
                            self._num_failed_starts = 0
                            self._needs = message.needs
                            worker.open(is_concurrent=message.is_concurrent)
                        case Unusable():
                            raise UserError(message.message, hint=message.hint)
                worker.moved(self._clock())
                if worker in self._workers and not worker.handle.is_alive:
                    self._bury(worker, worker.handle.end(within_s=_EXIT_S))
            for worker in list(self._workers):
                if worker.due_at <= self._clock():
                    self._end_overdue(worker)
            self.submit()  # Who has room by now gets what waits.
            if self._results or self._clock() >= until:
                results, self._results = self._results, []
                return results

    @property
    def is_ready(self) -> bool:
        """Whether at least one process has imported the reward functions."""
        return any(worker.is_ready for worker in self._workers)

    def wait_ready(self, columns: Iterable[str] | None = None) -> None:
        """Wait until the reward functions are imported; check that `columns` has all they need."""
        while not self.is_ready:
            self._selector.select(self._wait_limit_s())
            self._results = self.poll()
        if columns is not None:
            check_columns(self._needs, columns)

    def close(self) -> None:
        """End every process; pending requests are forgotten."""
        for worker in self._workers:
            worker.handle.end(within_s=0.0)
        self._workers.clear()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait_limit_s(self) -> float:
        wait_s = self.wait_s()
        return 3600.0 if wait_s is None else wait_s

    def _bury(self, worker: PoolWorker, reason: str) -> None:
        """Give the requests that a process worked on when it was lost another chance, in a new one."""
        for task in reversed(list(worker.tasks.values())):
            task.num_deaths += task.call is not None
            if task.num_deaths > self._config.retries:
                self._fail(task, "process died", f"the process that ran it {reason}")
            else:
                self._queue.appendleft(task)
        self._replace(worker, reason)

    def _end_overdue(self, worker: PoolWorker) -> None:
        culprit = worker.overdue(self._clock())
        if culprit is not None:
            del worker.tasks[culprit.request.request]
            self._fail(culprit, "time limit", f"no answer within {self._config.time_limit_s:g} s")
            self._queue.extendleft(reversed(worker.tasks.values()))
            self._replace(worker, f"hung in {culprit.call.function}" if culprit.call else "hung")
        else:
            self._queue.extendleft(reversed(worker.tasks.values()))
            self._replace(worker, f"said nothing for {worker.silence_limit_s:g} s")

    def _fail(self, task: ScoreTask, reason: Reason, detail: str) -> None:
        assert task.call is not None, f"request {task.request.request} was not begun"
        failure = RewardFailure(
            function=task.call.function, row=task.request.items[0].row.row, reason=reason, detail=detail
        )
        self._results.append(ScoreResult(request=task.request.request, scores=(), failures=(failure,)))

    def _replace(self, worker: PoolWorker, reason: str) -> None:
        self._num_failed_starts += not worker.is_ready
        self._selector.unregister(worker.descriptor)
        worker.handle.end(within_s=0.0)
        self._workers.remove(worker)
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
        spec = WorkerSpec(
            name="a reward worker",
            module="dora_rl.run.workers.reward_worker",
            log=None if self._log is None else str(self._log),
            # How many threads a user's function takes is the user's business.
            place=Place(cpus=None),
        )
        handle = self._launch.start(spec, WorkerOutput)
        set_up = SetUp(
            rewards=self._config.rewards,
            time_limit_s=self._config.time_limit_s,
            objects=dict(self._objects),
        )
        handle.send(set_up)
        worker = PoolWorker(self._config, handle, self._clock())
        self._workers.append(worker)
        self._selector.register(worker.descriptor, selectors.EVENT_READ, worker)
