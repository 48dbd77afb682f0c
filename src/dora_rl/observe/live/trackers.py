"""Trackers: every row of metrics.jsonl goes to W&B, MLflow, Trackio or a tracker of the user's own.

One of the user's own is a function that is called with the run's name and its recipe as plain data, and
returns a function that takes the values of a step: `log(values, step)`. Where that has a `close`, it is
called at the end. TensorBoard is not here: the run writes its files by itself where the package is installed.

Rows are read in the run's loop and passed on by a thread: a slow tracker delays no step, and what it has not
taken some seconds after the run's end is told and left out.

What trackers have been given is kept in the run's directory: a resumed run goes on in theirs, and rows that
were written and not passed on when it was killed are passed on then.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct, field

from dora_rl.core.decisions import Decision
from dora_rl.core.errors import UserError
from dora_rl.core.inputs import Input, Published, Tick
from dora_rl.core.named import is_place, load_named
from dora_rl.core.recipe import Recipe
from dora_rl.core.struct_loader import to_dict
from dora_rl.observe.live.completions import CompletedGroup
from dora_rl.observe.live.metrics_tail import Metrics, MetricsTail
from dora_rl.observe.live.tracker_kinds import (
    TRACKER_KINDS,
    Opening,
    TrackerSession,
    is_evaluation,
    open_tracker,
)
from dora_rl.observe.live.tracker_thread import StdoutByThread, TrackerThread
from dora_rl.store.durable import write_atomically

_MOST_TABLES = 50
"""Number of steps of a run whose completions go to trackers."""
_MOST_WAITING = 10_000
"""Number of rows and tables that wait for trackers; more are left out."""
_LAST_S = 30.0
"""Seconds that trackers are waited for at the end of a run."""
_UNTOLD_S = 1.0
_OTHER_ROWS = "an evaluation is a row too, with other values than a step's: values.get(...)"


class Tracked(Struct, kw_only=True):
    """What trackers have of a run."""

    runs: dict[str, str] = field(default_factory=dict)
    """The tracker's own run, by the tracker's name."""
    step: int = 0
    """The last train step whose row was passed on."""
    evaluations: list[int] = field(default_factory=list)
    """Versions whose evaluations were passed on."""

    def note(self, values: Mapping[str, float], step: int) -> bool:
        """Note that a row is passed on; False if it was before."""
        if is_evaluation(values):
            is_new = step not in self.evaluations
            self.evaluations += [step] if is_new else []
        else:
            is_new = step > self.step
            self.step = max(step, self.step)
        return is_new


class Trackers(AbstractContextManager["Trackers"]):
    """All trackers of a run, opened at once; its `watch` is a watcher of the run."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        run: str,
        recipe: Recipe,
        metrics: MetricsTail,
        kept: Path,
        completions: Callable[[int], Sequence[CompletedGroup]] = lambda step: (),
        tell: Callable[[str], None] = lambda text: None,
        last_s: float = _LAST_S,
    ) -> None:
        """`kept` is where what was passed on is written down; `completions` gives those of a step.

        After the run's end trackers are waited for `last_s` seconds.
        """
        self._metrics = metrics
        self._completions = completions
        self._tell = tell
        self._kept = kept
        self._tracked = _read(kept, tell)
        """What was passed on; the thread's, once it has begun."""
        self._given = copy.deepcopy(self._tracked)
        """What was read to be passed on."""
        self._steps = recipe.steps
        self._last_s = last_s
        self._num_dropped = 0
        self._missed: dict[str, int] = {}
        """Number of rows that a built-in tracker did not take, by its name."""
        self._opened: dict[str, TrackerSession] = {}
        self._stdout = StdoutByThread()
        plain = to_dict(recipe)
        try:
            for name in names:
                self._open(name, run, plain)
        except BaseException:
            self._close()
            raise
        self._thread = TrackerThread(_MOST_WAITING) if self._opened else None
        self._is_kept = False

    def _open(self, name: str, run: str, recipe: dict[str, Any]) -> None:
        if name in TRACKER_KINDS:
            self._stdout.install()
            opening = Opening(name=run, recipe=recipe, run_id=self._tracked.runs.get(name))
            with self._stdout_kept_free(name):
                self._opened[name] = open_tracker(name, opening)
            self._tracked.runs[name] = self._opened[name].run_id
        elif is_place(name):
            self._opened[name] = OwnTracker(name, run, recipe)

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        if self._thread is None:
            return
        if self._thread.error is not None:
            raise self._thread.error
        # Not before: the directory of a new run is there once something happens in it.
        if not self._is_kept:
            self._is_kept = self._thread.give(self._keep)
        if isinstance(event, Published):
            self._pass_on(self._thread)
            if self._shows(event.version) and (groups := self._completions(event.version)):
                show = partial(self._each, lambda tracker: tracker.show(groups, event.version))
                self._num_dropped += not self._thread.give(show)
        elif isinstance(event, Tick):
            self._metrics.notice_cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            self._stdout.restore()
            return
        self._pass_on(self._thread)
        if not self._thread.wait(_UNTOLD_S):
            behind = self._thread.num_waiting
            self._tell(f"trackers are {behind:,} rows or tables behind: they have {self._last_s:g} s")
            self._thread.wait(self._last_s)
        is_idle = self._thread.stop()
        self._tell_missing(self._thread)
        # Not in the middle of a call that does not end.
        if is_idle:
            self._close()
        self._stdout.restore()
        if self._thread.error is not None:
            raise self._thread.error

    def _tell_missing(self, thread: TrackerThread) -> None:
        for name, number in self._missed.items():
            self._tell(f"warning: {name} lacks {number:,} rows; metrics.jsonl has them all")
        left = self._num_dropped + (thread.num_waiting if thread.error is None else 0)
        if left:
            self._tell(
                f"warning: trackers were too slow for {left:,} rows or tables, which they lack; "
                "metrics.jsonl and completions.jsonl have them all"
            )

    def _close(self) -> None:
        """Close what was opened; in the thread it was opened in, whose run a tracker may take it for."""
        self._each(lambda tracker: tracker.close())
        self._stdout.restore()

    def _shows(self, step: int) -> bool:
        """Whether the completions of a step go to trackers: evenly spread, the first and the last too."""
        if self._opened.keys().isdisjoint(TRACKER_KINDS):
            return False
        return step in (1, self._steps) or step % -(-self._steps // _MOST_TABLES) == 0

    def _pass_on(self, thread: TrackerThread) -> None:
        for values, step in map(_split, self._metrics.read()):
            if self._given.note(values, step):
                self._num_dropped += not thread.give(partial(self._log, values, step))

    def _log(self, values: dict[str, float], step: int) -> None:
        self._each(lambda tracker: tracker.log(values, step))
        self._tracked.note(values, step)
        self._keep()

    def _each(self, do: Callable[[TrackerSession], None]) -> None:
        """Do something with every tracker; what a built-in one raises is said once and ends no run."""
        for name, tracker in self._opened.items():
            try:
                with self._stdout_kept_free(name):
                    do(tracker)
            except UserError:
                raise
            except Exception as error:  # a server that is gone, a disk that is full: whatever it meets
                if name not in self._missed:
                    self._tell(f"warning: {name} takes no rows: {type(error).__name__}: {error}")
                self._missed[name] = self._missed.get(name, 0) + 1

    def _keep(self) -> None:
        write_atomically(self._kept, msgspec.json.encode(self._tracked))

    def _stdout_kept_free(self, name: str) -> AbstractContextManager[None]:
        """What a built-in tracker prints goes to stderr: stdout is for the run's result."""
        return self._stdout.turned_away() if name in TRACKER_KINDS else nullcontext()


class OwnTracker:
    """A tracker of the user's own, whose errors say that they are its own."""

    def __init__(self, name: str, run: str, recipe: Mapping[str, Any]) -> None:
        self.run_id = ""
        self._name = name
        self._log = load_named(name)(run=run, recipe=dict(recipe))
        if not callable(self._log):
            raise UserError(f"the tracker '{name}' returned nothing to call", hint="return log(values, step)")

    def log(self, values: dict[str, float], step: int) -> None:
        try:
            self._log(values, step)
        except Exception as error:
            raise UserError(
                f"the tracker '{self._name}' raised {type(error).__name__} at step {step}: {error}",
                hint=_OTHER_ROWS if isinstance(error, KeyError) else None,
            ) from error

    def show(self, groups: Sequence[CompletedGroup], step: int) -> None:
        """Leave completions out: a tracker of the user's own takes numbers."""

    def close(self) -> None:
        getattr(self._log, "close", lambda: None)()


def _split(row: Metrics) -> tuple[dict[str, float], int]:
    values = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
    return values, int(values.pop("step", 0))


def _read(kept: Path, tell: Callable[[str], None]) -> Tracked:
    """What trackers had when the run was cut short; nothing of a new run."""
    try:
        return msgspec.json.decode(kept.read_bytes(), type=Tracked)
    except FileNotFoundError:
        return Tracked()
    except (msgspec.DecodeError, UnicodeDecodeError):
        tell(
            f"warning: {kept} is damaged: trackers are given every row again, in a run of theirs that is new"
        )
        return Tracked()
