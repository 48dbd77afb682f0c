"""Preparing a run, as whoever wants one sees it: a recipe in, a plan out, then what the run begins with.

The work is a worker's, which imports torch and the user's code; here it is only waited for. However long the
whole takes, it may go on as long as each piece ends, or is further, within its limit. A piece that does not,
or a worker that dies, is an error that names the piece. Torch-free.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from dora_rl.core.errors import DoraError, UserError
from dora_rl.core.recipe import Recipe
from dora_rl.launch.local import LOCAL
from dora_rl.launch.messages import Broken, Stop
from dora_rl.launch.protocol import Handle, Launch, WorkerSpec
from dora_rl.launch.waiting import Interrupts, undisturbed, wait_for
from dora_rl.prepare.cluster_devices import ClusterDevices
from dora_rl.prepare.messages import (
    Doing,
    Given,
    InputsWritten,
    Planned,
    PlanRun,
    PrepareSampling,
    PrepareServing,
    PrepareWord,
    SamplingPrepared,
    ServingPrepared,
    WriteInputs,
)
from dora_rl.prepare.recipe_names import check_model_name, named_data
from dora_rl.prepare.run_plan import RunPlan
from dora_rl.run.run_setup import RunSetup
from dora_rl.store.errors import DiskFull

Tell = Callable[[str], None]
"""A function that is told sentences for whoever waits."""

_LOOK_EVERY_S = 0.2
_TELL_EVERY_S = 10.0
"""Seconds after which a piece of work is told of, and again when it is further."""
_STOP_S = 5.0
_MEMORY = "most often for want of memory: `dora doctor` says how much there is"


class Preparation:
    """One run, from its recipe to the moment it can begin; nothing is left behind when its `with` ends."""

    def __init__(
        self,
        recipe: Recipe,
        run_directory: str,
        *,
        launch: Launch = LOCAL,
        given: Given | None = None,
        interrupts: Interrupts | None = None,
        cluster: ClusterDevices | None = None,
    ) -> None:
        """`given` is what `object:LABEL` in the recipe stands for; an interrupt ends any wait.

        The run is planned for `cluster`, else for this machine, which prepares it in either case.
        """
        self._recipe = recipe
        self._run_directory = run_directory
        self._launch = launch
        self._given = given or Given()
        self._interrupts = interrupts
        self._cluster = cluster
        self._staging = tempfile.TemporaryDirectory(prefix="dora-prepare-")
        self._worker: Handle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Who is impatient may ask again, and would leave the directory.
        with undisturbed():
            if self._worker is not None:
                self._worker.end(within_s=0.0)
            self._staging.cleanup()

    def plan(self, tell: Tell = lambda text: None) -> RunPlan:
        """The plan of the run: all that can be known before it starts; `tell` is told of what takes long.

        Raises a UserError where the recipe cannot be run.
        """
        # Told at once: the worker imports torch first.
        check_model_name(self._recipe.model)
        named_data(self._recipe)
        # Without a log: what it prints goes to stderr, as it is no result.
        spec = WorkerSpec(name="the preparation", module="dora_rl.prepare.worker")
        self._worker = self._launch.start(spec, PrepareWord)
        self._worker.send(
            PlanRun(
                recipe=self._recipe,
                run_directory=self._run_directory,
                given=self._given,
                cluster=self._cluster,
            )
        )
        return next(word.plan for word in self._words(tell) if isinstance(word, Planned))

    def sampling(self, *, is_judged: bool, tell: Tell = lambda text: None) -> RunSetup:
        """Have everything made that sampling begins with; returns its set-up, in the run directory."""
        spec = WorkerSpec(name="the preparation", module="dora_rl.prepare.worker")
        self._worker = self._launch.start(spec, PrepareWord)
        self._worker.send(
            PrepareSampling(
                recipe=self._recipe, directory=self._run_directory, given=self._given, is_judged=is_judged
            )
        )
        setup = next(word.setup for word in self._words(tell) if isinstance(word, SamplingPrepared))
        self._worker.send(Stop())
        self._worker.end(within_s=_STOP_S)
        return setup

    def serving(
        self, asked: PrepareServing, *, follows: bool, tell: Tell = lambda text: None
    ) -> tuple[ServingPrepared, Handle]:
        """Have everything made that serving begins with, in the directory asked for.

        Returns the worker beside it, which takes the run's newer versions over if asked; else it has ended.
        """
        spec = WorkerSpec(name="the preparation", module="dora_rl.prepare.worker")
        self._worker = self._launch.start(spec, PrepareWord)
        self._worker.send(asked)
        prepared = next(word for word in self._words(tell) if isinstance(word, ServingPrepared))
        if not follows:
            self._worker.send(Stop())
            self._worker.end(within_s=_STOP_S)
        return prepared, self._worker

    def finish(self, tell: Tell = lambda text: None) -> Path:
        """Do the warm start if there is one; returns the directory of what the planned run begins with."""
        assert self._worker is not None, "a run is planned first"
        self._worker.send(WriteInputs(directory=self._staging.name))
        next(word for word in self._words(tell) if isinstance(word, InputsWritten))
        # What it has of the machine is the run's.
        self._worker.send(Stop())
        self._worker.end(within_s=_STOP_S)
        return Path(self._staging.name)

    def _words(self, tell: Tell) -> Iterator[PrepareWord]:
        """What the worker says as it works; raises the error that came instead, or that it takes too long."""
        worker, silence_s = self._worker, self._recipe.control.silence_s
        assert worker is not None, "it was started"
        # Before its first word it imports torch.
        doing = Doing(what="starting", limit=("patience.start_s", self._recipe.patience.start_s))
        has_spoken, told = False, ""
        heard_at = since = told_at = time.monotonic()
        while True:
            wait_for([worker], [], _LOOK_EVERY_S)
            if self._interrupts is not None and self._interrupts.count:
                raise KeyboardInterrupt
            for word in worker.receive():
                heard_at, has_spoken = time.monotonic(), True
                if isinstance(word, Broken):
                    raise _error(word)
                if isinstance(word, Doing):
                    told_at = told_at if word.what == doing.what else heard_at
                    doing, since = word, heard_at
                yield word
            if not worker.is_alive:
                raise _gone(worker.end(within_s=1.0), doing)
            now = time.monotonic()
            if doing.limit is not None and now - since > doing.limit[1]:
                raise _too_long(doing, *doing.limit)
            if has_spoken and now - heard_at > silence_s:
                raise DoraError(
                    "the process that prepares the run gave no sign of life for "
                    f"control.silence_s = {silence_s:g} s while {doing}"
                )
            if now - told_at > _TELL_EVERY_S and told != str(doing):
                told_at, told = now, str(doing)
                tell(f"{doing} ...")


def _gone(how: str, doing: Doing) -> DoraError:
    """The error for a preparing worker that is gone, with what the user can do."""
    killed = how.removeprefix("killed by ")
    said = f"was {how}" if killed != how else how.replace("exited with", "ended with exit code")
    message = f"the process that prepares the run {said} while {doing}"
    if killed == "SIGKILL":
        return DoraError(message, hint=_MEMORY)
    if doing.hint is not None:
        return UserError(message, hint=doing.hint)
    return DoraError(message, hint="what it said is above; `dora doctor` says what this machine lacks")


def _error(word: Broken) -> DoraError:
    kind = UserError if word.is_lasting else DiskFull if word.is_disk_full else DoraError
    return kind(word.message, hint=word.hint)


def _too_long(doing: Doing, name: str, limit_s: float) -> UserError:
    raise_it = f"raise {name}"
    return UserError(
        f"{doing} took longer than {name} = {limit_s:g} s",
        hint=f"{doing.hint}; or {raise_it}" if doing.hint else raise_it,
    )
