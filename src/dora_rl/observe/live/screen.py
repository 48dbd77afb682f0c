"""The screen of a live run: what a Follower knows, drawn by rich for the size of the terminal.

Knows nothing of where it comes from. A narrow terminal gets fewer columns, the least important left out
first, a low one fewer rows; no header is cut and no row of the table wraps. Text that is not the program's
own (a run's name, a reward's error) is made visible and is never markup.
"""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dora_rl.core.record import Record
from dora_rl.core.visible_text import one_line
from dora_rl.observe.live.event_facts import EvaluationFacts, RunState, StepFacts
from dora_rl.observe.live.step_words import (
    by_function,
    by_version,
    curves_by_function,
    duration,
    left_s,
    number,
    rows_of,
    tokens_per_s,
    waiting,
)
from dora_rl.observe.tables import table

_BLOCKS = "▁▂▃▄▅▆▇█"
_SHOWN_STEPS, _FEWEST_STEPS = 8, 3
_CURVE = 60
_BAR = 30
_LISTED_INSTANCES = 8
_WIDE = 10_000
"""Columns of a terminal on which everything fits, to measure what is drawn."""
_COLUMNS = (
    "step",
    "reward",
    "no variance",
    "tokens",
    "cut",
    "staleness",
    "tokens/s",
    "step time",
    "starved",
    "window",
)
_BY_IMPORTANCE = (
    "step",
    "reward",
    "step time",
    "staleness",
    "tokens",
    "no variance",
    "tokens/s",
    "starved",
    "cut",
    "window",
)


class RunScreen(Record, frozen=True, gc=True):
    """The whole screen of a run; warnings and remarks stand at the top, where nothing cuts them off."""

    title: str
    state: RunState
    steps: Sequence[StepFacts]
    evaluations: Sequence[EvaluationFacts]
    num_steps: int
    warnings: Sequence[str] = ()
    remarks: Sequence[str] = ()
    doing: str | None = None
    """What is done before the run's first event, in words."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw in full where the terminal is high enough for a few steps beside everything else."""
        # One line is left free: a screen as high as the terminal scrolls.
        height = (options.height or options.size.height) - 1
        for is_short in (False, True):
            top, bottom = self._top(options.max_width, is_short), self._bottom(options.max_width, is_short)
            frame = _height(console, options, top, bottom, self._table(console, options, 0))
            room = height - frame
            if room >= _FEWEST_STEPS:
                break
        yield top
        if room > 0 and self.steps:
            yield self._table(console, options, min(room, _SHOWN_STEPS))
        yield bottom

    def _top(self, width: int, is_short: bool) -> RenderableType:
        remaining = left_s(self.steps, self.num_steps)
        eta = f"  {duration(remaining)} left" if remaining else ""
        done = f"{self.state.version}/{self.num_steps}  {duration(self.state.at)}{eta}"
        bar = min(_BAR, width // 4)
        title = Text(_end_of(one_line(self.title), max(8, width - bar - len(done) - 4)), style="bold")
        line = Table.grid(padding=(0, 2))
        line.add_row(title, ProgressBar(total=self.num_steps, completed=self.state.version, width=bar), done)
        said = [(f"warning: {text}", "red") for text in self.warnings]
        said += [(text, "yellow") for text in self.remarks]
        return Group(line, *(_line(text, style, is_short=is_short) for text, style in said))

    def _table(self, console: Console, options: ConsoleOptions, num_steps: int) -> Table:
        """The latest steps under as many columns as fit."""
        cells = [self._cells(end) for end in range(1, len(self.steps) + 1)[-num_steps:]] if num_steps else []
        for kept in range(len(_BY_IMPORTANCE), 0, -1):
            columns = [name for name in _COLUMNS if name in _BY_IMPORTANCE[:kept]]
            made = table("", *(f">{name}" for name in columns))
            for column in made.columns:
                column.no_wrap = True
            for row in cells:
                made.add_row(*(row[name] for name in columns))
            if console.measure(made, options=options.update(width=_WIDE)).maximum <= options.max_width:
                break
        return made

    def _cells(self, end: int) -> dict[str, str]:
        facts = self.steps[end - 1]
        return {
            "step": str(facts.step),
            "reward": number(facts.reward),
            "no variance": f"{facts.zero_variance_share:.0%}",
            "tokens": f"{facts.mean_tokens:.0f}",
            "cut": f"{facts.truncated_share:.0%}",
            "staleness": f"{facts.staleness_mean:.2f} / {facts.staleness_max}",
            "tokens/s": f"{tokens_per_s(self.steps[:end]):,.0f}",
            "step time": duration(facts.step_s),
            "starved": duration(facts.starved_s),
            "window": duration(facts.window_s),
        }

    def _bottom(self, width: int, is_short: bool) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, max_width=max(8, width // 3), overflow="ellipsis")
        grid.add_column(no_wrap=is_short, overflow="ellipsis" if is_short else "fold")
        rows = [*self._rewards(width), *self._rollout(is_short)]
        for label, text in rows:
            grid.add_row(Text(one_line(label)), Text(one_line(text)))
        return grid

    def _rewards(self, width: int) -> Iterator[tuple[str, str]]:
        """The curve of the reward, and of each function on a scale they share."""
        curves = curves_by_function(self.steps)
        functions = {name: [value for _, value in own] for name, own in curves.items()}
        rewards = [facts.reward for facts in self.steps if facts.reward is not None]
        room = min(_CURVE, width - min(max(map(len, ["active groups", *functions])) + 2, width // 3) - 22)
        if rewards:
            yield "reward", _ends(rewards, curve(rewards, room))
        span = [value for own in functions.values() for value in own]
        for name, own in functions.items():
            yield f"  {name}", _ends(own, curve(own, room, (min(span), max(span))))
        if self.evaluations:
            newest = self.evaluations[-1]
            each = f": {text}" if (text := by_function(newest.values)) else ""
            yield "held out", f"{newest.reward:.3f} over {rows_of(newest)}, version {newest.version}{each}"

    def _rollout(self, is_short: bool) -> Iterator[tuple[str, str]]:
        running = self.state.running
        if not is_short:
            yield "active groups", by_version(self.state.active_by_version)
        if is_short or len(running) > _LISTED_INSTANCES:
            requests = sum(sum(versions.values()) for versions in running.values())
            busy = sum(map(bool, running.values()))
            yield "instances", f"{busy} of {len(running)} busy, {requests:,} requests"
        else:
            for instance, versions in running.items():
                own = ", ".join(f"{count} of v{version}" for version, count in versions.items()) or "idle"
                yield f"instance {instance}", own
        yield "now", self.doing or waiting(self.state)
        if outcomes := self.state.outcomes:
            yield "left out", ", ".join(f"{count:,} {name}" for name, count in outcomes.items())


def curve(values: Sequence[float], width: int = _CURVE, scale: tuple[float, float] | None = None) -> str:
    """A line of block characters: the values, averaged down to `width`, between the ends of the scale.

    Without a scale, between their least and greatest.
    """
    if not values or width < 1:
        return ""
    size = -(-len(values) // width)
    means = [sum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]
    low, high = scale or (min(means), max(means))
    span = (high - low) or 1.0
    return "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1))] for value in means)


def _ends(values: Sequence[float], drawn: str) -> str:
    return f"{drawn}  {values[0]:.3f} to {values[-1]:.3f}"


def _end_of(text: str, width: int) -> str:
    """The end of a text that is too wide: of a path the end says which."""
    if cell_len(text) <= width:
        return text
    while cell_len(text) >= width:
        text = text[1:]
    return f"…{text}"


def _line(text: str, style: str, *, is_short: bool) -> Text:
    """A sentence that wraps, or is one line on a low terminal."""
    if is_short:
        return Text(one_line(text), style=style, no_wrap=True, overflow="ellipsis")
    return Text(one_line(text), style=style)


def _height(console: Console, options: ConsoleOptions, *parts: RenderableType) -> int:
    return sum(len(console.render_lines(part, options, pad=False)) for part in parts)
