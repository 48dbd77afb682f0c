"""Trackers: every row of metrics.jsonl goes to W&B, MLflow, Trackio or a tracker of the user's own.

One of the user's own is a function that is called with the run's name and its recipe as plain data, and
returns a function that takes the values of a step: `log(values, step)`. Where that has a `close`, it is
called at the end. TensorBoard is not here: the run writes its files by itself where the package is installed.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from dora_rl.core.decisions import Decision
from dora_rl.core.errors import UserError
from dora_rl.core.inputs import Input, Published, Tick
from dora_rl.core.named import is_place, load_named
from dora_rl.core.recipe import Recipe
from dora_rl.core.struct_loader import to_dict
from dora_rl.observe.live.metrics_tail import Metrics, MetricsTail

Log = Callable[[dict[str, float], int], None]
"""A function that logs the values of a step: `log(values, step)`."""
Opened = tuple[Log, Callable[[], None]]
"""An open tracker: the function that logs the values of a step, and the one that ends it."""

_PROJECT = "dora-rl"
_OTHER_ROWS = "an evaluation is a row too, with other values than a step's: values.get(...)"


class Trackers(AbstractContextManager["Trackers"]):
    """All trackers of a run, opened at once; its `watch` is a watcher of the run."""

    def __init__(self, names: Sequence[str], *, run: str, recipe: Recipe, metrics: MetricsTail) -> None:
        self._metrics = metrics
        plain = to_dict(recipe)
        self._opened = [_open(name, run, plain) for name in names if name in _OPEN or is_place(name)]

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        if isinstance(event, Published):
            self._pass_on()
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
            for _, end in self._opened:
                end()

    def _pass_on(self) -> None:
        if not self._opened:
            return
        for row in self._metrics.read():
            for log, _ in self._opened:
                log(*_split(row))


def _split(row: Metrics) -> tuple[dict[str, float], int]:
    values = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
    return values, int(values.pop("step", 0))


def _open(name: str, run: str, recipe: Mapping[str, Any]) -> Opened:
    if name in _OPEN:
        return _OPEN[name](_imported(name), run, recipe)
    log = load_named(name)(run=run, recipe=dict(recipe))
    if not callable(log):
        raise UserError(f"the tracker '{name}' returned nothing to call", hint="return log(values, step)")
    return _guarded(log, name), getattr(log, "close", lambda: None)


def _guarded(log: Log, name: str) -> Log:
    """A tracker of the user's own whose errors say that they are its own."""

    def guarded(values: dict[str, float], step: int) -> None:
        try:
            log(values, step)
        except Exception as error:
            raise UserError(
                f"the tracker '{name}' raised {type(error).__name__} at step {step}: {error}",
                hint=_OTHER_ROWS if isinstance(error, KeyError) else None,
            ) from error

    return guarded


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"run.trackers names {name}, which cannot be imported: {error}", hint=f"pip install {name}"
        ) from error


def _open_wandb(module: Any, run: str, recipe: Mapping[str, Any]) -> Opened:
    """Open a W&B run, or a Trackio run, whose interface is the same."""
    module.init(project=_PROJECT, name=run, config=dict(recipe))
    return lambda values, step: module.log(values, step=step), module.finish


def _open_mlflow(module: Any, run: str, recipe: Mapping[str, Any]) -> Opened:
    module.set_experiment(_PROJECT)
    module.start_run(run_name=run)
    module.log_dict(dict(recipe), "recipe.json")
    return lambda values, step: module.log_metrics(values, step=step), module.end_run


_OPEN: dict[str, Callable[[Any, str, Mapping[str, Any]], Opened]] = {
    "wandb": _open_wandb,
    "trackio": _open_wandb,
    "mlflow": _open_mlflow,
}
