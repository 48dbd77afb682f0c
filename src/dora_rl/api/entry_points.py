"""Training as a function: the one way to start a run, for scripts, notebooks and `dora train` alike.

    keywords ──> Asked (recipe, objects) ──> run directory ──> prepared (plan, rows, model) ──> run ──> Run

`train` does all of it where it is called, `start` beside the caller, `resume` from a run that was cut short.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dora_rl.api.arguments import Asked, plain_values
from dora_rl.api.directory import run_directory
from dora_rl.api.objects import objects_named
from dora_rl.api.progress import Progress, Teller
from dora_rl.api.run_handle import Interrupted, Run
from dora_rl.api.work import Callbacks, NewRun, ResumedRun, Work
from dora_rl.core.recipe.resolution import Base
from dora_rl.envs.adapters.trl_environment import EnvironmentEpisode
from dora_rl.launch.local import LOCAL
from dora_rl.launch.protocol import Launch
from dora_rl.launch.waiting import terminations_interrupt
from dora_rl.observe.live.metrics_tail import Metrics
from dora_rl.prepare.run_plan import RunPlan
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_summary import read_summary

Callback = Callable[[Metrics], None]
"""Hears a row of metrics as soon as it is written; what it raises ends the run in order."""


def train(
    recipe: Base = None,
    *others: Any,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_plan: Callable[[RunPlan], None] | None = None,
    name: str | None = None,
    progress: Progress | bool = "auto",
    launch: Launch = LOCAL,
    **settings: Any,
) -> Run:
    """Train a model by reinforcement learning, to the end; returns the run.

    >>> def short(completions, **columns):
    ...     return [-len(text) / 100 for text in completions]
    >>> rows = [{"prompt": "Say hello."}, {"prompt": "Say goodbye."}]
    >>> run = train(model="path/or/name", data=rows, rewards=[short], steps=50, max_completion_length=64)
    >>> run.metrics[-1]["reward"], run.checkpoint
    (-0.12, PosixPath('runs/run-1/checkpoints/step_00050'))

    `recipe` is the name of a shipped recipe, a YAML file, a Recipe or a mapping; keywords are laid over it:
    sections (`batch={"groups": 8}`), keys by any unambiguous end of their path (`max_staleness=2`), or TRL's
    names (`num_generations=8`). `data` is a name, a path, an iterable of rows, a `datasets.Dataset`, several
    of them with weights, or, for rows that are read as they are needed, a function that yields them or a
    `datasets.IterableDataset`; `model` a name, a path or a loaded `transformers` model, with its `tokenizer`;
    `rewards`, `episode`, `loss` and `advantage` are names or functions; `environment_factory` is an
    environment class of TRL's form; `peft_config` is a peft LoraConfig.

    The run leaves everything in `runs/NAME-1`, `-2` and so on, where `run={"directory": ...}` does not say
    otherwise; `name` is the recipe's where it has one.

    `on_step` and `on_evaluation` hear each row of metrics, `on_plan` what the run will be and need.

    Ctrl-C lets the step in progress end, writes a checkpoint and raises Interrupted, a KeyboardInterrupt;
    `resume` goes on. Errors are DoraErrors with a hint.
    """
    asked = Asked(recipe, settings, name, others)
    callbacks = Callbacks(on_step, on_evaluation, on_plan)
    with run_directory(asked.recipe, asked.name) as directory:
        work = NewRun(Run(directory), asked, Teller(progress), launch, callbacks)
        with _interrupts_told(work):
            work.run.summary = work()
        return work.run


def start(
    recipe: Base = None,
    *others: Any,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_plan: Callable[[RunPlan], None] | None = None,
    name: str | None = None,
    progress: Progress | bool = False,
    launch: Launch = LOCAL,
    **settings: Any,
) -> Run:
    """Begin to train, as `train` does, beside the caller; returns at once.

    >>> run = start("demo", steps=20)
    >>> for step in run:
    ...     print(step["step"], step["reward"])
    >>> run.wait().checkpoint
    PosixPath('runs/demo-1/checkpoints/step_00020')

    `run.stop()` lets the step in progress end and writes a checkpoint. What ends the run is raised by
    `wait` and by the iteration. Callbacks are called in the run's thread.
    """
    asked = Asked(recipe, settings, name, others)
    callbacks = Callbacks(on_step, on_evaluation, on_plan)
    claim = run_directory(asked.recipe, asked.name)
    return _started(NewRun(Run(claim.__enter__()), asked, Teller(progress), launch, callbacks, claim))


def resume(
    run: Run | str | Path,
    *,
    rewards: Any = None,
    loss: Any = None,
    advantage: Any = None,
    episode: Any = None,
    environment_factory: Any = None,
    tools: Any = (),
    data: Any = None,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    progress: Progress | bool = "auto",
    launch: Launch = LOCAL,
    **settings: Any,
) -> Run:
    """Go on with a run that was interrupted, killed or failed, to its end; or with more steps after its end.

    >>> run = resume("runs/run-1", rewards=[short])
    >>> run = resume("runs/run-1", rewards=[short], steps=100)

    Keywords change its recipe, as far as that decides nothing about what was trained: more `steps`,
    checkpoints, how often it is evaluated, trackers, patience, the number of instances; others are refused by
    name. Functions that it was given as objects are not in its directory: give them again, those of one name
    in the same order, and `data` where its rows are a stream that was one; a run that names all needs none.
    """
    given = {"rewards": rewards, "loss": loss, "advantage": advantage, "episode": episode, "data": data}
    if environment_factory is not None or tools:
        given["episode"] = EnvironmentEpisode(environment_factory, tools=tools)
    callbacks = Callbacks(on_step, on_evaluation)
    return resumed(run, plain_values(settings), given, callbacks, progress, launch)


def resumed(
    run: Run | str | Path,
    values: Mapping[str, Any],
    given: Mapping[str, Any],
    callbacks: Callbacks,
    progress: Progress | bool,
    launch: Launch = LOCAL,
) -> Run:
    """Go on with a run, `values` of its recipe changed by key; `given` are the functions it was given."""
    directory = run.directory if isinstance(run, Run) else Run(run).directory
    objects = objects_named(given)
    objects.check_complete(LiveLayout(root=directory).read_recipe())
    work = ResumedRun(Run(directory), values, objects, Teller(progress), launch, callbacks)
    with _interrupts_told(work):
        work.run.summary = work()
    return work.run


def dry_run(
    recipe: Base = None,
    *others: Any,
    name: str | None = None,
    progress: Progress | bool = False,
    launch: Launch = LOCAL,
    **settings: Any,
) -> RunPlan:
    """What a run would be, and the memory and disk it would need; nothing is left behind.

    >>> dry_run("demo").disk_bytes
    48237111
    """
    asked = Asked(recipe, settings, name, others)
    with run_directory(asked.recipe, asked.name, is_dry=True) as directory:
        work = NewRun(Run(directory), asked, Teller(progress), launch, Callbacks())
        with closing(work.interrupts), terminations_interrupt():
            return work.plan()


@contextmanager
def _interrupts_told(work: Work) -> Iterator[None]:
    """Raise Interrupted where the work ends before the run does, so that the caller knows how to go on."""
    run = work.run
    with closing(work.interrupts), terminations_interrupt():
        try:
            yield
        except KeyboardInterrupt:
            # It came before the run heeded interrupts itself, or after: whatever there is is durable.
            layout = LiveLayout(root=run.directory)
            if not layout.setup.exists():
                raise
            run.summary = read_summary(layout.finished)
            if run.summary is None:
                raise Interrupted(run) from None
    assert run.summary is not None, "the work is done"
    if not run.summary.is_complete:
        raise Interrupted(run)


def _started(work: Work) -> Run:
    """Do the work in a thread; an error that ends it is kept for whoever waits."""
    run = work.run

    def do() -> None:
        try:
            with _interrupts_told(work):
                run.summary = work()
        except BaseException as error:
            run.error = error
        finally:
            run.tell_changed()

    # Not a daemon: a program that ends by itself waits for its run, as a command does.
    run.begin(threading.Thread(target=do, name=f"run {run.directory.name}"), work.interrupts)
    return run
