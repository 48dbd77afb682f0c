"""A run in a notebook: one output that is drawn anew as steps end. No picture library, no widget.

Shows what a terminal shows, as HTML: reward curve, last steps, warnings. Text that comes from the run is
escaped. IPython is imported when it is used, and is there then: a notebook asked.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dora_rl.core.decisions import Decision
from dora_rl.core.history import Event
from dora_rl.core.inputs import Input
from dora_rl.core.recipe import Recipe
from dora_rl.core.visible_text import as_html
from dora_rl.observe.live.dead_run_warnings import num_compared
from dora_rl.observe.live.event_facts import EvaluationFacts, StepFacts
from dora_rl.observe.live.step_words import curves_by_function, duration, number
from dora_rl.observe.live.view import RunView

_EVERY_S = 0.5
_SHOWN_STEPS = 5
_WIDTH, _HEIGHT = 560, 120
_COLUMNS = ("step", "reward", "tokens", "staleness", "step time", "starved")


class NotebookOutput:
    """One output of a cell, drawn anew as the run goes; its `watch` is a watcher of the run."""

    def __init__(self, view: RunView) -> None:
        from IPython.display import HTML, display

        self._view = view
        self._html = HTML
        self._output: Any = display(HTML(run_html(view)), display_id=True)  # type: ignore[no-untyped-call]
        self._drawn_at = 0.0

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        self._view.watch(event, decisions)
        if time.monotonic() - self._drawn_at >= _EVERY_S:
            self.draw()

    def note(self, doing: str) -> None:
        """Show what is done before the run's first event."""
        self._view.note(doing)
        self.draw()

    def draw(self) -> None:
        self._drawn_at = time.monotonic()
        self._output.update(self._html(run_html(self._view)))  # type: ignore[no-untyped-call]


@contextmanager
def shown_in_notebook(
    title: str, recipe: Recipe, past: Iterable[Event] | None = None, *, rewards_log: str = "logs/rewards.log"
) -> Iterator[NotebookOutput]:
    """An output of the current cell that is kept up to date until the block ends."""
    view = RunView(title, recipe.steps, None, rewards_log, num_compared(recipe))
    if past is not None:
        view.recall(past)
    output = NotebookOutput(view)
    try:
        yield output
    finally:
        output.draw()


def run_html(view: RunView) -> str:
    """The present state of a run as a fragment of HTML."""
    state, steps, evaluations = view.now()
    parts = [
        f"<b>{as_html(view.title)}</b> &nbsp; step {state.version} of {view.num_steps}, {duration(state.at)}",
        curve_svg(steps, evaluations),
        _table(steps),
        f"<div>{as_html(view.doing)}</div>" if view.doing else "",
        *(f'<div style="color:#b00">warning: {as_html(text)}</div>' for text in view.warnings()),
        *(f'<div style="color:#a60">{as_html(text)}</div>' for text in view.remarks()),
    ]
    return f'<div style="font-family:system-ui,sans-serif">{"".join(parts)}</div>'


def curve_svg(steps: Sequence[StepFacts], evaluations: Sequence[EvaluationFacts] = ()) -> str:
    """Reward by step as SVG, training as a line and held out as dots; empty with fewer than two points."""
    points = [(step.step, step.reward) for step in steps if step.reward is not None]
    dots = [(each.version, each.reward) for each in evaluations]
    if len(points) < 2:
        return ""
    values = [value for _, value in (*points, *dots)]
    low, span = min(values), (max(values) - min(values)) or 1.0
    last = max(step for step, _ in (*points, *dots))

    def place(step: int, value: float) -> tuple[float, float]:
        return 4 + (_WIDTH - 8) * step / last, 4 + (_HEIGHT - 8) * (1 - (value - low) / span)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    circles = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#E69F00"/>' for x, y in (place(*dot) for dot in dots)
    )
    caption = f"reward {points[0][1]:.3f} to {points[-1][1]:.3f}"
    if dots:
        caption += f"; held out {dots[0][1]:.3f} to {dots[-1][1]:.3f}"
    for name, own in curves_by_function(steps).items():
        caption += f"; {as_html(name)} {own[0][1]:.3f} to {own[-1][1]:.3f}"
    return (
        f'<div><svg width="{_WIDTH}" height="{_HEIGHT}" style="background:#fafafa">'
        f'<polyline points="{line}" fill="none" stroke="#0072B2" stroke-width="1.5"/>{circles}</svg>'
        f'<br><small style="color:#777">{caption}</small></div>'
    )


def _table(steps: Sequence[StepFacts]) -> str:
    if not steps:
        return "<div>no step has ended yet</div>"
    rows = "".join(
        "<tr>" + "".join(f'<td style="text-align:right">{cell}</td>' for cell in _cells(step)) + "</tr>"
        for step in steps[-_SHOWN_STEPS:]
    )
    head = "".join(f'<th style="text-align:right">{name}</th>' for name in _COLUMNS)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _cells(step: StepFacts) -> tuple[str, ...]:
    return (
        str(step.step),
        number(step.reward),
        f"{step.mean_tokens:.0f}",
        f"{step.staleness_mean:.2f}",
        duration(step.step_s),
        duration(step.starved_s),
    )
