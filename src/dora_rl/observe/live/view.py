"""Shows a run while it goes: a screen where somebody watches, else one line a step.

A view gets inputs and decisions from the run's own loop, and must not hold it up: there it only takes note,
and draws from a thread of rich's. Lines go to stderr, because the result of a run is what goes to stdout.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from rich.console import RenderableType
from rich.live import Live

from dora_rl.core.decisions import Decision
from dora_rl.core.history import Event
from dora_rl.core.inputs import Input
from dora_rl.core.recipe import Recipe
from dora_rl.observe.live.dead_run_warnings import Warner, num_compared
from dora_rl.observe.live.event_facts import EvaluationFacts, RunState, StepFacts
from dora_rl.observe.live.follower import Follower
from dora_rl.observe.live.remarks import remarks
from dora_rl.observe.live.screen import RunScreen
from dora_rl.observe.live.step_words import evaluation_line, step_line
from dora_rl.observe.terminal import say, stderr

_SHOWN_REMARKS = 3


class RunView:
    """The state of a run for display, as a screen or in lines; each step is reported once."""

    def __init__(
        self,
        title: str,
        num_steps: int,
        tell: Callable[[str], None] | None,
        rewards_log: str = "logs/rewards.log",
        num_compared: int | None = None,
    ) -> None:
        self.title = title
        self.num_steps = num_steps
        self._tell = tell
        self.doing: str | None = None
        """What is done before the run's first event, such as a warm start; None once that has come."""
        self._rewards_log = rewards_log
        self._remarks: dict[str, str] = {}
        """The latest remark about each worker and each kind of failure."""
        self._follower = Follower()
        self._lock = Lock()
        self._num_told = self._num_evaluations_told = 0
        self._compares_groups = num_compared is not None
        self._warner = Warner(num_compared)

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        """Take in one input and its decisions; a watcher of the run."""
        with self._lock:
            self.doing = None
            self._follower.watch(event, decisions)
            for remark in remarks(event, self._follower, self._rewards_log):
                about = remark.partition(":")[0]
                self._remarks.pop(about, None)
                self._remarks[about] = remark
                if self._tell is not None:
                    self._tell(remark)
            if self._tell is not None:
                self._tell_steps(self._tell)
                self._tell_evaluations(self._tell)

    def note(self, doing: str) -> None:
        """Take note of what is done before the run's first event: on a screen it goes when it is over."""
        self.doing = doing
        if self._tell is not None:
            self._tell(doing)

    def recall(self, past: Iterable[Event]) -> None:
        """Take in what happened before the run was resumed, without reporting any of it."""
        for event, decisions in past:
            self._follower.watch(event, decisions)
        self._num_told = len(self._follower.steps)
        self._num_evaluations_told = len(self._follower.evaluated)

    def now(self) -> tuple[RunState, list[StepFacts], list[EvaluationFacts]]:
        """The present state of the run, and its steps and evaluations so far."""
        with self._lock:
            follower = self._follower
            return follower.state, list(follower.steps), list(follower.evaluations)

    def warnings(self) -> list[str]:
        """The present reasons why the run may not be worth going on with."""
        with self._lock:
            return list(self._warner.current(self._follower))

    def remarks(self) -> list[str]:
        """The latest remarks about workers and failures, for somebody who watches."""
        with self._lock:
            return list(self._remarks.values())[-_SHOWN_REMARKS:]

    def __rich__(self) -> RenderableType:
        state, steps, evaluations = self.now()
        return RunScreen(
            title=self.title,
            state=state,
            steps=steps,
            evaluations=evaluations,
            num_steps=self.num_steps,
            warnings=self.warnings(),
            remarks=self.remarks(),
            doing=self.doing,
        )

    def _tell_steps(self, tell: Callable[[str], None]) -> None:
        steps = self._follower.steps
        for number in range(self._num_told, len(steps)):
            line = step_line(
                steps[: number + 1], num_steps=self.num_steps, compares_groups=self._compares_groups
            )
            tell(line)
            for warning in self._warner.new(self._follower):
                tell(f"warning: {warning}")
        self._num_told = len(steps)

    def _tell_evaluations(self, tell: Callable[[str], None]) -> None:
        evaluated = self._follower.evaluated
        for facts in evaluated[self._num_evaluations_told :]:
            tell(evaluation_line(facts))
        self._num_evaluations_told = len(evaluated)


@contextmanager
def shown(
    title: str, recipe: Recipe, past: Iterable[Event] | None = None, *, rewards_log: str = "logs/rewards.log"
) -> Iterator[RunView]:
    """A view that shows the run on stderr until the block ends; `past` is what a resumed run has done."""
    console = stderr()
    tell = None if console.is_terminal else say
    view = RunView(title, recipe.steps, tell, rewards_log, num_compared(recipe))
    if past is not None:
        view.recall(past)
    if not console.is_terminal:
        yield view
        return
    # Lines may not wrap here: the height of the screen must be known to draw over it.
    with Live(view, console=console, refresh_per_second=4):
        yield view
