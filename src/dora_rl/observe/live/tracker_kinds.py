"""The trackers that are built in: W&B, Trackio and MLflow, each opened as its users expect.

What their environment variables say (WANDB_PROJECT, MLFLOW_EXPERIMENT_NAME, ...) is left to them: a value is
given only where none is set. A run that the caller has opened already is used and left open. Completions are
a table of the steps they are of.
"""

import importlib
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from dora_rl.core.errors import UserError
from dora_rl.core.record import Record
from dora_rl.core.visible_text import visible
from dora_rl.observe.live.completions import CompletedGroup

_PROJECT = "dora-rl"
_MOST_ROWS = 64
"""Number of completions in one table."""
_MOST_CHARACTERS = 4000
"""Characters of a prompt or completion in a table."""
_MLFLOW_PARAMETERS = 100
"""Number of parameters MLflow takes in one call."""


_OPENED_WITH = {
    "wandb": "`wandb login`, or WANDB_MODE=offline, and `wandb sync` later",
    "trackio": "see TRACKIO_PROJECT, TRACKIO_SPACE_ID and TRACKIO_DIR",
    "mlflow": "see MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME",
}
"""What to look at where a tracker cannot be opened."""


class TrackerSession(Protocol):
    """An open run of a tracker."""

    @property
    def run_id(self) -> str:
        """What the tracker's run is found by when this run is resumed."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Log a row of metrics, of a train step or of an evaluation, which may come late."""

    def show(self, groups: Sequence[CompletedGroup], step: int) -> None:
        """Log completions of a step as a table."""

    def close(self) -> None:
        """End the tracker's run, unless the caller opened it."""


class Opening(Record, frozen=True):
    """What a tracker is opened with."""

    name: str
    """The run's name, unless the tracker's environment has another."""
    recipe: dict[str, Any]
    run_id: str | None = None
    """The tracker's own run, where this run is resumed."""


def open_tracker(kind: str, opening: Opening) -> TrackerSession:
    """Open a run of a built-in tracker, or go on with one."""
    try:
        module = importlib.import_module(kind)
    except ImportError as error:
        is_missing = error.name in (kind, None)
        raise UserError(
            f"run.trackers names {kind}, which cannot be imported: {error}",
            hint=f"pip install {kind}"
            if is_missing
            else f"`python -c 'import {kind}'` shows the whole error",
        ) from error
    try:
        return TRACKER_KINDS[kind](module, opening)
    except Exception as error:  # whatever the package raises: no account, no server, no such run
        raise UserError(
            f"run.trackers names {kind}, which cannot be opened: {type(error).__name__}: {error}",
            hint=_OPENED_WITH[kind],
        ) from error


def is_evaluation(values: Mapping[str, float]) -> bool:
    """Whether a row of metrics is that of an evaluation, which has other values than a train step's."""
    return "eval/prompts" in values


class WandbSession:
    """A run of W&B. Rows carry their step as a metric: W&B's own only rises, and evaluations come late."""

    def __init__(self, module: Any, opening: Opening) -> None:
        self._wandb = module
        self._is_callers = getattr(module, "run", None) is not None
        self._run = module.run if self._is_callers else module.init(**_wandb_arguments(opening))
        self.run_id = str(self._run.id)
        self._defined: set[str] = set()

    def log(self, values: dict[str, float], step: int) -> None:
        axis = "eval/step" if is_evaluation(values) else "step"
        # One by one: where several patterns fit a name, W&B does not say which of them counts.
        for name in values.keys() - self._defined:
            self._run.define_metric(name, step_metric=axis)
        self._defined |= values.keys()
        self._run.log({**values, axis: step})

    def show(self, groups: Sequence[CompletedGroup], step: int) -> None:
        columns, rows = completion_table(groups)
        self._run.log({"completions": self._wandb.Table(columns=columns, data=rows), "step": step})

    def close(self) -> None:
        if not self._is_callers:
            self._run.finish()


def _wandb_arguments(opening: Opening) -> dict[str, Any]:
    return {
        "config": opening.recipe,
        **_unless_set("WANDB_PROJECT", project=_PROJECT),
        **_unless_set("WANDB_NAME", name=opening.name),
        **(_unless_set("WANDB_RUN_ID", id=opening.run_id) if opening.run_id else {}),
        **(_unless_set("WANDB_RESUME", resume="allow") if opening.run_id else {}),
    }


class TrackioSession:
    """A run of Trackio, which keeps the step of each row, in whatever order they come."""

    def __init__(self, module: Any, opening: Opening) -> None:
        self._trackio = module
        # Trackio finds runs by name, and gives a name that is taken another ending.
        name, resume = (opening.run_id, "allow") if opening.run_id else (opening.name, "never")
        project = os.environ.get("TRACKIO_PROJECT", _PROJECT)
        self._run = module.init(project=project, name=name, resume=resume, config=opening.recipe)
        self.run_id = str(self._run.name)

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def show(self, groups: Sequence[CompletedGroup], step: int) -> None:
        columns, rows = completion_table(groups)
        self._run.log({"completions": self._trackio.Table(columns=columns, data=rows)}, step=step)

    def close(self) -> None:
        # The module's own: after the run's it would be finished once more when Python ends.
        self._trackio.finish()


class MlflowSession:
    """A run of MLflow, which keeps the step of each value, in whatever order they come."""

    def __init__(self, module: Any, opening: Opening) -> None:
        self._mlflow = module
        active = module.active_run()
        self._is_callers = active is not None
        if active is None:
            if not {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"} & os.environ.keys():
                module.set_experiment(_PROJECT)
            name = _unless_set("MLFLOW_RUN_NAME", run_name=opening.name)
            active = module.start_run(run_id=opening.run_id) if opening.run_id else module.start_run(**name)
        self.run_id = str(active.info.run_id)
        if opening.run_id is None:
            module.log_dict(opening.recipe, "recipe.json")
            flat = list(_parameters(opening.recipe))
            for first in range(0, len(flat), _MLFLOW_PARAMETERS):
                module.log_params(dict(flat[first : first + _MLFLOW_PARAMETERS]))

    def log(self, values: dict[str, float], step: int) -> None:
        named = {_mlflow_name(name): value for name, value in values.items()}
        self._mlflow.log_metrics(named, step=step, run_id=self.run_id)

    def show(self, groups: Sequence[CompletedGroup], step: int) -> None:
        columns, rows = completion_table(groups)
        table = {column: [row[place] for row in rows] for place, column in enumerate(columns)}
        # A table in a file of its own: MLflow reads and writes one that grows whole again each time.
        self._mlflow.log_table(table, f"completions/step_{step:06d}.json", run_id=self.run_id)

    def close(self) -> None:
        if not self._is_callers:
            self._mlflow.end_run()


def _mlflow_name(name: str) -> str:
    """A metric's name with the characters MLflow allows."""
    return posixpath.normpath(re.sub(r"[^\w.\-: /]", "_", name)).lstrip("./")[:250] or "_"


def _parameters(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The recipe as flat parameters, `batch.groups`: what runs are compared by."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _parameters(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _unless_set(variable: str, **argument: Any) -> dict[str, Any]:
    """An argument, unless this environment variable says it: an argument would go before it."""
    return {} if os.environ.get(variable) else argument


def completion_table(groups: Sequence[CompletedGroup]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a table of completions, bounded in rows and in characters."""
    shown = [(group, each) for group in groups for each in group.completions][:_MOST_ROWS]
    names = dict.fromkeys(name for _, each in shown for name in each.values)
    extras = dict.fromkeys(name for _, each in shown for name in each.extras)
    rows = [
        [group.step, group.group, group.version, _cell(group.prompt), _cell(each.text), each.reward]
        + [each.values.get(name) for name in names]
        + [each.num_tokens, each.is_truncated]
        # As text: a column of a tracker's table is of one type.
        + [_cell(str(each.extras.get(name, ""))) for name in extras]
        for group, each in shown
    ]
    columns = ["step", "group", "version", "prompt", "completion", "reward"]
    columns += [*(f"rewards/{name}" for name in names), "tokens", "cut"]
    return [*columns, *(f"extra/{name}" for name in extras)], rows


def _cell(text: str) -> str:
    return visible(text[:_MOST_CHARACTERS])


TRACKER_KINDS: dict[str, Callable[[Any, Opening], TrackerSession]] = {
    "wandb": WandbSession,
    "trackio": TrackioSession,
    "mlflow": MlflowSession,
}
