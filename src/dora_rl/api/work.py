"""What is done of a run, step by step, for whoever asked for it.

NewRun      rows and model of the caller's made readable ── prepare ── announce ── run
ResumedRun  check that it can go on ── run from where it stands
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dora_rl.api.arguments import Asked
from dora_rl.api.given import given_in_files
from dora_rl.api.in_process import CallersRewards
from dora_rl.api.objects import UserObjects
from dora_rl.api.progress import Teller
from dora_rl.api.run_handle import Run
from dora_rl.api.run_place import RunPlace, run_place, with_spares
from dora_rl.core.decisions import Decision
from dora_rl.core.errors import ConfigError
from dora_rl.core.history import Event
from dora_rl.core.inputs import Input, Published, Tick
from dora_rl.core.lasting_output import note_losses
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.free_options import secret_warnings
from dora_rl.core.recipe.unused_keys import training_remarks
from dora_rl.launch.protocol import Launch
from dora_rl.launch.waiting import Interrupts
from dora_rl.observe.live.completions import CompletionLog, load_decode
from dora_rl.observe.live.metrics_tail import Metrics, MetricsTail
from dora_rl.observe.live.trackers import Trackers
from dora_rl.observe.report.run_reader import COMPLETIONS, is_in_use
from dora_rl.observe.run_plan_view import in_units, start_lines
from dora_rl.prepare.preparation import Preparation
from dora_rl.prepare.run_plan import RunPlan
from dora_rl.run.live_run import Watcher, resume_live, run_live
from dora_rl.run.resume_changes import change_run
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_summary import RunSummary, read_summary
from dora_rl.store.errors import RunError
from dora_rl.store.journal import Journal
from dora_rl.store.reconcile import reconcile
from dora_rl.store.run_directory import RunDirectory


class Callbacks:
    """The caller's functions that are told of the plan, of train steps and of evaluations."""

    def __init__(
        self,
        on_step: Callable[[Metrics], None] | None = None,
        on_evaluation: Callable[[Metrics], None] | None = None,
        on_plan: Callable[[RunPlan], None] | None = None,
    ) -> None:
        for name, function in (("on_step", on_step), ("on_evaluation", on_evaluation), ("on_plan", on_plan)):
            if function is not None and not callable(function):
                raise ConfigError(
                    f"{name} is {type(function).__name__}", hint=f"{name} is a function, or None"
                )
        self._on_step = on_step
        self._on_evaluation = on_evaluation
        self._on_plan = on_plan

    def planned(self, plan: RunPlan) -> None:
        """Tell the caller how the recipe will be run."""
        if self._on_plan is not None:
            self._on_plan(plan)

    def written(self, row: Metrics) -> None:
        """Tell the caller of a row of metrics."""
        heard = self._on_evaluation if "eval/prompts" in row else self._on_step
        if heard is not None:
            heard(row)


class Work:
    """A run to be done: called once, in whichever thread."""

    def __init__(
        self, run: Run, objects: UserObjects, teller: Teller, launch: Launch, callbacks: Callbacks
    ) -> None:
        self.run = run
        self._layout = LiveLayout(root=run.directory)
        self._teller = teller
        self._callbacks = callbacks
        self._sent, kept = objects.packed()
        objects.check_sent(kept)
        self._given_launch = launch
        self._in_process = objects.of if kept else None
        self._launch = self._with_rewards(launch)
        """The launch of this machine, which prepares the run."""
        for label, reason in kept.items():
            teller.say(
                f"warning: {label} cannot be sent to another process ({reason}): rewards run "
                "in this one, where a call that hangs cannot be ended and one that crashes ends the run"
            )
        self.interrupts = Interrupts()
        """Counts how often somebody asked the run to stop; whoever has the work done closes it."""

    @abstractmethod
    def __call__(self) -> RunSummary:
        """Do the run, to its end or until interrupted."""

    def _with_rewards(self, launch: Launch) -> Launch:
        return launch if self._in_process is None else CallersRewards(launch, self._in_process)

    @contextmanager
    def _placed(self, recipe: Recipe, *, is_dry: bool = False) -> Iterator[RunPlace]:
        """Where the run's own workers are started; unless it is dry, what it surely needs is begun."""
        say, directory = self._teller.say, self.run.directory
        with run_place(recipe.cluster, self._given_launch, say, directory) as place, ExitStack() as spares:
            launch = place.launch if is_dry else spares.enter_context(with_spares(recipe, place.launch))
            yield RunPlace(launch=self._with_rewards(launch), devices=place.devices)

    @contextmanager
    def _watched(self, title: str, recipe: Recipe, past: Iterable[Event] | None) -> Iterator[list[Watcher]]:
        """Everyone who is told what happens: screen, trackers, completions, the caller."""
        layout = self._layout
        if "tensorboard" in recipe.run.trackers and find_spec("tensorboard") is None:
            self._teller.say(
                "TensorBoard is not installed: metrics go to metrics.jsonl alone (pip install tensorboard)"
            )
        completions = CompletionLog(
            layout.root / COMPLETIONS,
            journal=layout.journal,
            num_trajectories=recipe.run.log_completions,
            decode=lambda: load_decode(layout.tokenizer),
        )
        with (
            Trackers(
                recipe.run.trackers,
                run=layout.root.name,
                recipe=recipe,
                metrics=MetricsTail(layout.metrics_log),
                kept=layout.tracked,
                completions=completions.of,
                tell=self._teller.tell,
            ) as trackers,
            self._teller.shown(title, recipe, past, str(layout.rewards_log)) as shown,
        ):
            callers = CallersWatcher(self.run, _tail(layout), self._callbacks, self.interrupts)
            yield [*shown, completions.watch, trackers.watch, callers.watch, self._note_lost_output]
            callers.finish()

    def _note_lost_output(self, event: Input, decisions: list[Decision]) -> None:
        """Write into the run's log that nobody reads what is printed any more. Has the form of a watcher."""
        note_losses(self._layout.orchestrator_log)


class NewRun(Work):
    """A run from its beginning."""

    def __init__(
        self,
        run: Run,
        asked: Asked,
        teller: Teller,
        launch: Launch,
        callbacks: Callbacks,
        claim: AbstractContextManager[Path] | None = None,
    ) -> None:
        """`claim` keeps the directory for this run until it has begun."""
        super().__init__(run, asked.objects, teller, launch, callbacks)
        self._asked = asked
        self._claim = claim
        self._recipe = asked.recipe
        for warning in (*training_remarks(asked.recipe), *secret_warnings(asked.recipe)):
            teller.say(f"warning: {warning}")
        if self._in_process is not None:
            # One thread: functions that cannot be sent are seldom made to be called by several at once.
            self._recipe = replace(asked.recipe, scoring=replace(asked.recipe.scoring, processes=1))

    def __call__(self) -> RunSummary:
        with ExitStack() as ending:
            if self._claim is not None:
                ending.push(self._claim)
            # First, for no plan is of use where the cluster is not there.
            place = ending.enter_context(self._placed(self._recipe))
            given = ending.enter_context(given_in_files(self._asked, self._sent))
            preparation = Preparation(
                self._recipe,
                str(self.run.directory),
                launch=self._launch,
                given=given,
                interrupts=self.interrupts,
                cluster=place.devices,
            )
            ending.enter_context(preparation)
            plan = preparation.plan(self._teller.say)
            self._announce(plan)
            title = f"{self._asked.recipe.model}, {self._asked.name}"
            watchers = ending.enter_context(self._watched(title, plan.setup.recipe, None))
            return run_live(
                plan.setup,
                preparation.finish(self._teller.doing),
                watchers,
                launch=place.launch,
                objects=self._sent,
                interrupts=self.interrupts,
            )

    def plan(self) -> RunPlan:
        """Plan the run without starting it; leaves nothing behind."""
        directory = str(self.run.directory)
        with (
            self._placed(self._recipe, is_dry=True) as place,
            given_in_files(self._asked, self._sent) as given,
            Preparation(
                self._recipe,
                directory,
                launch=self._launch,
                given=given,
                interrupts=self.interrupts,
                cluster=place.devices,
            ) as preparation,
        ):
            return preparation.plan(self._teller.say)

    def _announce(self, plan: RunPlan) -> None:
        if plan.disk_bytes > plan.free_disk_bytes:
            needed, free = in_units(plan.disk_bytes), in_units(plan.free_disk_bytes)
            self._teller.say(f"warning: the run may write up to {needed}, and {free} are free")
        self._teller.say(f"run directory: {self.run.directory}")
        for line in start_lines(plan):
            self._teller.say(line)
        self._callbacks.planned(plan)


class ResumedRun(Work):
    """A run from where it was cut short, or from its end where it is given more steps."""

    def __init__(
        self,
        run: Run,
        values: Mapping[str, Any],
        objects: UserObjects,
        teller: Teller,
        launch: Launch,
        callbacks: Callbacks,
    ) -> None:
        """`values` are to be changed in the run's recipe, by key."""
        super().__init__(run, objects, teller, launch, callbacks)
        self._values = values

    def __call__(self) -> RunSummary:
        layout = self._layout
        self._check(layout)
        recipe = change_run(layout.root, self._values, self._teller.say).recipe
        if layout.is_finished:
            summary = read_summary(layout.finished)
            if summary is not None and (summary.steps_asked or summary.steps) >= recipe.steps:
                self._teller.say("the run is finished: nothing is left to train; --set steps=N extends it")
                with RunDirectory(layout.root), Journal.open(layout.journal) as journal:
                    reconcile(layout.events, journal)
                return summary
            # It was extended, or a crash left no summary that can be read: nothing else is lost with it.
            layout.finished.unlink()
        past = _journalled(layout.journal)
        title = f"{recipe.model}, {layout.root.name}"
        with self._placed(recipe) as place, self._watched(title, recipe, past) as watchers:
            return resume_live(
                layout.root,
                watchers,
                self._teller.tell,
                launch=place.launch,
                objects=self._sent,
                interrupts=self.interrupts,
            )

    @staticmethod
    def _check(layout: LiveLayout) -> None:
        """Refuse what is no run, or is in use, before its past is read; opening it checks again."""
        layout.read_recipe()
        if is_in_use(layout.lock):
            raise RunError(
                f"the run in {layout.root} is going on in another process", hint="wait for it, or end it"
            )


class CallersWatcher:
    """Passes rows of metrics on to the caller as they are written; a callback that raises stops the run."""

    def __init__(self, run: Run, metrics: MetricsTail, callbacks: Callbacks, interrupts: Interrupts) -> None:
        self._run = run
        self._metrics = metrics
        self._callbacks = callbacks
        self._interrupts = interrupts
        self._error: Exception | None = None

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        """Pass on new rows when a version is published, and at each tick. Has the form of a run's watcher."""
        # An evaluation is over between two publishes; a tick comes soon after it.
        if isinstance(event, Published | Tick) and self._error is None:
            try:
                self._pass_on()
            except Exception as error:
                # Whatever a callback of the user's raises: the run ends in order first.
                self._error = error
                if not self._interrupts.count:
                    self._interrupts.ask()

    def finish(self) -> None:
        """Pass on what was written last; raise what a callback raised."""
        if self._error is not None:
            raise self._error
        self._pass_on()

    def _pass_on(self) -> None:
        for row in self._metrics.read():
            self._callbacks.written(row)
        self._run.tell_changed()


def _journalled(journal: Path) -> Iterator[Event]:
    """Everything that happened in a run, from its journal: the event log may be behind it or damaged."""
    with Journal.open(journal) as opened:
        yield from opened.events()


def _tail(layout: LiveLayout) -> MetricsTail:
    metrics = MetricsTail(layout.metrics_log)
    # What a resumed run wrote before is known.
    metrics.read()
    return metrics
