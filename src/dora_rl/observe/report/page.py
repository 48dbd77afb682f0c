"""The report's page: one HTML file that needs no other and no network."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dora_rl.core.struct_loader import to_yaml
from dora_rl.core.visible_text import as_html
from dora_rl.observe.live.completions import CompletedGroup, Completion
from dora_rl.observe.live.step_words import number
from dora_rl.observe.report.plots import as_svg, plots
from dora_rl.observe.report.run_facts import RunFacts
from dora_rl.observe.report.text import lines, warning_text

_SHOWN_GROUPS = 3
"""Number of groups shown from the first steps, and from the last ones."""
_SHOWN_CHARACTERS = 4000

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #262626; max-width: 1200px; margin: 2em auto;
  padding: 0 1em; }
h1 { font-size: 1.5em; }
h2 { font-size: 1.15em; margin-top: 2em; }
svg { max-width: 100%; height: auto; }
table.facts td { padding: 0.1em 1.2em 0.1em 0; vertical-align: top; }
table.facts td:first-child { color: #8c8c8c; white-space: pre; }
.warning { border-left: 4px solid #D55E00; background: #fdf3ee; padding: 0.5em 1em; margin: 0.5em 0; }
.group { margin: 1em 0 2em; }
.prompt { background: #f4f4f4; padding: 0.5em 1em; white-space: pre-wrap; overflow-wrap: anywhere; }
.members { display: grid; grid-template-columns: repeat(auto-fill, minmax(260px, 1fr)); gap: 0.7em;
  margin-top: 0.7em; }
.member { border: 1px solid #e4e4e4; border-top: 4px solid; padding: 0.4em 0.8em; overflow: auto;
  max-height: 22em; }
.member pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0.3em 0; font-size: 0.87em; }
.reward { font-weight: bold; }
.small { color: #8c8c8c; font-size: 0.85em; }
details pre { background: #f4f4f4; padding: 1em; overflow: auto; }
"""


def write_page(run: RunFacts, path: Path) -> Path:
    """Write the report of a run as one HTML file."""
    path.write_text("\n".join(_page(run)), encoding="utf-8")
    return path


def _page(run: RunFacts) -> Iterator[str]:
    name = as_html(Path(run.directory).name)
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
    yield f"<style>{_STYLE}</style></head><body><h1>{name}</h1>"
    for warning in run.warnings:
        if warning.now is not None:
            yield f'<div class="warning">{as_html(warning_text(warning))}</div>'
    yield '<table class="facts">'
    for label, text in lines(run):
        yield f"<tr><td>{as_html(label)}</td><td>{as_html(text)}</td></tr>"
    yield "</table>"
    for title, figure in plots(run):
        yield f"<h2>{as_html(title)}</h2>{as_svg(figure)}"
    yield from _completions(run.completions)
    yield from _details("Last metrics", _last_metrics(run, is_evaluation=False))
    yield from _details("Last evaluation", _last_metrics(run, is_evaluation=True))
    yield from _details("Recipe", to_yaml(run.recipe))
    yield "</body></html>"


def _completions(groups: Sequence[CompletedGroup]) -> Iterator[str]:
    if not groups:
        return
    yield "<h2>Completions and their rewards</h2>"
    shown = [*groups[:_SHOWN_GROUPS], *groups[max(_SHOWN_GROUPS, len(groups) - _SHOWN_GROUPS) :]]
    span = _span(groups)
    for group in shown:
        yield f'<div class="group"><div class="small">step {group.step}, version {group.version}</div>'
        yield f'<div class="prompt">{as_html(group.prompt[:_SHOWN_CHARACTERS])}</div><div class="members">'
        ordered = sorted(
            group.completions, key=lambda each: -(each.reward if each.reward is not None else -1e9)
        )
        yield from (_member(each, span) for each in ordered)
        yield "</div></div>"


def _member(completion: Completion, span: tuple[float, float]) -> str:
    values = ", ".join(f"{as_html(name)} {number(value)}" for name, value in completion.values.items())
    extras = "".join(f"; {as_html(name)}: {as_html(str(each))}" for name, each in completion.extras.items())
    cut = ", cut" if completion.is_truncated else ""
    return (
        f'<div class="member" style="border-top-color: {_colour(completion.reward, span)}">'
        f'<span class="reward">{number(completion.reward)}</span> '
        f'<span class="small">{values}; {completion.num_tokens} tokens{cut}{extras}</span>'
        f"<pre>{as_html(completion.text[:_SHOWN_CHARACTERS])}</pre></div>"
    )


def _span(groups: Sequence[CompletedGroup]) -> tuple[float, float]:
    rewards = [each.reward for group in groups for each in group.completions if each.reward is not None]
    return min(rewards, default=0.0), max(rewards, default=1.0)


def _colour(reward: float | None, span: tuple[float, float]) -> str:
    """The colour of a reward, from orange for the least to blue for the greatest."""
    if reward is None:
        return "#8C8C8C"
    low, high = span
    share = (reward - low) / (high - low) if high > low else 1.0
    mixed = (round(a + share * (b - a)) for a, b in zip((213, 94, 0), (0, 114, 178), strict=True))
    return "#" + "".join(f"{part:02X}" for part in mixed)


def _last_metrics(run: RunFacts, *, is_evaluation: bool) -> str:
    """The last row of metrics.jsonl, of evaluations or of train steps, which have rows of their own."""
    found = [row for row in run.metrics if any(name.startswith("eval/") for name in row) == is_evaluation]
    return "\n".join(f"{name}: {value}" for name, value in found[-1].items()) if found else ""


def _details(title: str, text: str) -> Iterator[str]:
    if text:
        yield f"<details><summary>{as_html(title)}</summary><pre>{as_html(text)}</pre></details>"
