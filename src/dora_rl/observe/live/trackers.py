"""Trackers: every row of metrics.jsonl goes to W&B, MLflow, Trackio or a tracker of the user's own.

One of the user's own is a function that is called with the run's name and its recipe as plain data, and
returns a function that takes the values of a step: `log(values, step)`. Where that has a `close`, it is
called at the end. TensorBoard is not here: the run writes its files by itself where the package is installed.

What trackers have been given is kept in the run's directory: a resumed run goes on in theirs, and rows that
were written and not passed on when it was killed are passed on then.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
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
from dora_rl.store.durable import write_atomically

_MOST_TABLES = 50
"""Number of steps of a run whose completions go to trackers."""
_OTHER_ROWS = "an evaluation is a row too, with other values than a step's: values.get(...)"


class Tracked(Struct, kw_only=True):
    """What trackers have of a run."""

    runs: dict[str, str] = field(default_factory=dict)
    """The tracker's own run, by the tracker's name."""
    step: int = 0
    """The last train step whose row was passed on."""
    evaluations: list[int] = field(default_factory=list)
    """Versions whose evaluations were passed on."""


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
    ) -> None:
        """`kept` is where what was passed on is written down; `completions` gives those of a step."""
        self._metrics = metrics
        self._completions = completions
        self._tell = tell
        self._kept = kept
        self._tracked = _read(kept, tell)
        self._steps = recipe.steps
        self._missed: dict[str, int] = {}
        """Number of rows that a built-in tracker did not take, by its name."""
        self._opened: dict[str, TrackerSession] = {}
        plain = to_dict(recipe)
        for name in names:
            if name in TRACKER_KINDS:
                opening = Opening(name=run, recipe=plain, run_id=self._tracked.runs.get(name))
                with _stdout_kept_free(name):
                    self._opened[name] = open_tracker(name, opening)
                self._tracked.runs[name] = self._opened[name].run_id
            elif is_place(name):
                self._opened[name] = OwnTracker(name, run, plain)
        self._is_kept = False

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        # Not before: the directory of a new run is there once something happens in it.
        if self._opened and not self._is_kept:
            self._keep()
        if isinstance(event, Published):
            self._pass_on()
            if self._opened and self._shows(event.version) and (groups := self._completions(event.version)):
                self._each(lambda tracker: tracker.show(groups, event.version))
        elif isinstance(event, Tick):
            self._metrics.notice_cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._pass_on()
        finally:
            self._each(lambda tracker: tracker.close())
            for name, number in self._missed.items():
                self._tell(f"warning: {name} lacks {number:,} rows; metrics.jsonl has them all")

    def _shows(self, step: int) -> bool:
        """Whether the completions of a step go to trackers: evenly spread, the first and the last too."""
        return step in (1, self._steps) or step % -(-self._steps // _MOST_TABLES) == 0

    def _pass_on(self) -> None:
        if not self._opened:
            return
        rows = [_split(row) for row in self._metrics.read()]
        for values, step in rows:
            if self._note(values, step):
                self._log(values, step)
        if rows:
            self._keep()

    def _log(self, values: dict[str, float], step: int) -> None:
        self._each(lambda tracker: tracker.log(values, step))

    def _note(self, values: dict[str, float], step: int) -> bool:
        """Note that a row is passed on; False if it was before."""
        if is_evaluation(values):
            is_new = step not in self._tracked.evaluations
            self._tracked.evaluations += [step] if is_new else []
        else:
            is_new = step > self._tracked.step
            self._tracked.step = max(step, self._tracked.step)
        return is_new

    def _each(self, do: Callable[[TrackerSession], None]) -> None:
        """Do something with every tracker; what a built-in one raises is said once and ends no run."""
        for name, tracker in self._opened.items():
            try:
                with _stdout_kept_free(name):
                    do(tracker)
            except UserError:
                raise
            except Exception as error:  # a server that is gone, a disk that is full: whatever it meets
                if name not in self._missed:
                    self._tell(f"warning: {name} takes no rows: {type(error).__name__}: {error}")
                self._missed[name] = self._missed.get(name, 0) + 1

    def _keep(self) -> None:
        write_atomically(self._kept, msgspec.json.encode(self._tracked))
        self._is_kept = True


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


def _stdout_kept_free(name: str) -> AbstractContextManager[Any]:
    """What a built-in tracker prints goes to stderr: stdout is for the run's result."""
    return redirect_stdout(sys.stderr) if name in TRACKER_KINDS else nullcontext()


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
