"""A run as Python sees it: going on in this process or another, or over.

Everything it tells is read from its directory, so a run of last week answers as one that goes on. A run that
this process started can also be waited for, stopped and iterated over.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

from dora_rl.core.recipe import Recipe
from dora_rl.core.visible_text import as_html
from dora_rl.launch.waiting import Interrupts
from dora_rl.observe.live.completions import CompletedGroup, read_completions
from dora_rl.observe.live.metrics_tail import Metrics, MetricsTail
from dora_rl.observe.live.notebook import curve_svg
from dora_rl.observe.report.run_reader import COMPLETIONS, is_in_use, read_run
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_summary import RunSummary

_LOOK_EVERY_S = 0.5


class Interrupted(KeyboardInterrupt):
    """A run was interrupted and ended in order; `run` is what there is of it, and `resume(run)` goes on."""

    def __init__(self, run: "Run") -> None:
        super().__init__(f"interrupted; go on with dora_rl.resume({str(run.directory)!r})")
        self.run = run


class Run:
    """A training run: its metrics, completions, checkpoints and report.

    >>> run = Run("runs/demo-1")
    >>> run.metrics[-1]["reward"]
    0.94
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        """The run directory: everything about the run is in it."""
        self.summary: RunSummary | None = None
        """How the run ended; None while it goes on, or where another process ran it."""
        self.error: BaseException | None = None
        """The error that ended the run; None where none did."""
        self._layout = LiveLayout(root=self.directory)
        self._interrupts: Interrupts | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._changed = threading.Condition()

    # --- what it left behind --------------------------------------------------------------------

    @property
    def recipe(self) -> Recipe:
        """The recipe that was run, with everything filled in."""
        return self._layout.read_recipe()

    @property
    def metrics(self) -> list[Metrics]:
        """A row for each train step so far, in order; TRL's names."""
        return [row for row in self._rows() if "step_time" in row]

    @property
    def evaluations(self) -> list[Metrics]:
        """A row for each evaluation so far: `step`, `eval/reward` and so on."""
        return [row for row in self._rows() if "eval/prompts" in row]

    @property
    def completions(self) -> list[CompletedGroup]:
        """Some groups of every step as text, each completion beside its rewards."""
        return read_completions(self.directory / COMPLETIONS)

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint, a directory that `AutoModelForCausalLM.from_pretrained` opens.

        With LoRA it is an adapter, for which transformers needs peft.
        """
        found = sorted(self._layout.checkpoints.glob("step_*"), key=lambda path: int(path.name[5:]))
        return found[-1] if found else None

    @property
    def is_complete(self) -> bool:
        """Whether all train steps are done and in a checkpoint."""
        return self._layout.is_finished

    @property
    def is_running(self) -> bool:
        """Whether the run goes on, in this process or another."""
        return self._is_working or is_in_use(self._layout.lock)

    def report(self) -> Path:
        """Write the page that shows the run, `report.html` in its directory, and return its path."""
        # It comes with what draws, which takes a second to import.
        from dora_rl.observe.report.page import write_page

        return write_page(read_run(self.directory), self.directory / "report.html")

    # --- while it goes on -----------------------------------------------------------------------

    def __iter__(self) -> Iterator[Metrics]:
        """The row of each step as it ends, from the first on; over when the run is. Raises what ended it.

        Ctrl-C while it waits for the next row stops the run in order, as in `wait`.
        """
        tail, done = MetricsTail(self._layout.metrics_log), False
        while not done:
            done = not self._is_working
            yield from (row for row in tail.read() if "step_time" in row)
            if not done:
                self._await_change()
        self._raise()

    def _await_change(self) -> None:
        try:
            with self._changed:
                self._changed.wait(_LOOK_EVERY_S)
        except KeyboardInterrupt:
            self._interrupt()

    def wait(self, timeout_s: float | None = None) -> "Run":
        """Wait until the run is over, or for so long; raises what ended it. Ctrl-C stops the run in order."""
        thread = self._thread
        if thread is None:
            return self
        waited_s = 0.0
        while thread.is_alive() and (timeout_s is None or waited_s < timeout_s):
            try:
                step_s = _LOOK_EVERY_S if timeout_s is None else min(_LOOK_EVERY_S, timeout_s - waited_s)
                thread.join(step_s)
                waited_s += step_s
            except KeyboardInterrupt:
                self._interrupt()
        if not thread.is_alive():
            self._raise()
        return self

    def stop(self) -> None:
        """Let the step in progress end, write a checkpoint and stop; a second call stops at once.

        Who waits or iterates then comes to the end: `state` is `interrupted`, and nothing is raised. Of
        callbacks only the first call counts: they also hear of the step that ends meanwhile.
        """
        self._is_stopped = True
        self._interrupt()

    def _interrupt(self) -> None:
        is_callback = threading.current_thread() is self._thread
        if self._interrupts is not None and not (is_callback and self._interrupts.count):
            self._interrupts.ask()

    def begin(self, thread: threading.Thread, interrupts: Interrupts) -> None:
        """Start the thread that does the work; `wait` and `stop` speak to it."""
        self._thread, self._interrupts = thread, interrupts
        thread.start()

    def tell_changed(self) -> None:
        """Wake whoever iterates over the run: a step ended, or the run did."""
        with self._changed:
            self._changed.notify_all()

    @property
    def _is_working(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _raise(self) -> None:
        if self.error is not None and not (self._is_stopped and isinstance(self.error, Interrupted)):
            raise self.error

    def _rows(self) -> list[Metrics]:
        return MetricsTail(self._layout.metrics_log).read()

    # --- how it is shown ------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The state of the run in one word: running, complete, interrupted, failed or absent."""
        if self.is_running:
            return "running"
        if self.is_complete:
            return "complete"
        if self.error is not None and not isinstance(self.error, KeyboardInterrupt):
            return "failed"
        return "interrupted" if self._layout.setup.exists() else "absent"

    def __repr__(self) -> str:
        rows = self.metrics
        last = rows[-1].get("reward") if rows else None
        reward = f", reward {last:.3f}" if isinstance(last, float) else ""
        return f"<Run {self.directory.name}: {self.state}, {len(rows)} steps{reward}>"

    def _repr_html_(self) -> str:
        if not self._layout.events.is_file():
            return f"<code>{as_html(repr(self))}</code>"
        facts = read_run(self.directory)
        name, state = as_html(self.directory.name), self.state
        return f"<b>{name}</b>: {state}, {len(facts.steps)} steps{curve_svg(facts.steps, facts.evaluations)}"
