"""`dora report`: what came of a run, in words, and as one HTML page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dora_rl.core.errors import UserError
from dora_rl.core.visible_text import visible

if TYPE_CHECKING:
    from dora_rl.observe.report.run_facts import RunFacts


def report(
    run: Annotated[Path, typer.Argument(help="The directory of a run, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="The page.  [default: report.html in the run]")] = None,
    pictures: Annotated[
        Path | None, typer.Option(help="Also write the page's pictures as PNG files into this directory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Sum up a run and write a page with its curves, its timeline and completions beside their rewards.

    Works on runs that go on, were interrupted or crashed.
    """
    _report_run(run, out, pictures, as_json=as_json)


def _report_run(root: Path, out: Path | None, pictures: Path | None, *, as_json: bool) -> None:
    """Print the summary at once and write the page beside the run; it is not lost with the page."""
    from dora_rl.observe.report.run_reader import read_run
    from dora_rl.observe.report.text import show
    from dora_rl.observe.terminal import stdout

    run = read_run(root)
    if not as_json:
        show(stdout(), run)
    page, failure = _written(run, out or root / "report.html")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(_fields(run, page))))
    if failure is not None:
        raise failure
    written = _pictures(run, pictures) if pictures is not None else []
    if not as_json:
        for path in (page, *written):
            typer.echo(visible(f"wrote {path}"))


def _pictures(run: "RunFacts", directory: Path) -> list[Path]:
    from dora_rl.observe.report.plots import write_pictures

    try:
        return write_pictures(run, directory)
    except OSError as error:
        raise UserError(
            f"cannot write {directory}: {error.strerror}", hint="choose another place with --pictures"
        ) from error


def _written(run: "RunFacts", path: Path) -> tuple[Path | None, UserError | None]:
    """Write the page of a report; the error, instead of its path, if that fails."""
    from dora_rl.observe.report.page import write_page

    try:
        return write_page(run, path), None
    except OSError as error:
        return None, UserError(
            f"cannot write {path}: {error.strerror}", hint="choose another place with --out"
        )


def _fields(run: "RunFacts", page: Path | None) -> dict[str, object]:
    from dora_rl.observe.result_words import bottleneck

    first_and_last = run.mean_reward or (None, None)
    return {
        "directory": run.directory,
        "condition": run.condition,
        "steps": run.state.version,
        "steps_asked": run.recipe.steps,
        "elapsed_s": run.elapsed_s,
        "reward_first": first_and_last[0],
        "reward_last": first_and_last[1],
        "trainer_idle_fraction": run.trainer_idle_fraction,
        "instance_idle_fraction": run.instance_idle_fraction,
        "staleness_mean": run.staleness_mean if run.steps else None,
        "staleness_least": run.staleness_least,
        "versions_without_groups": run.state.skipped,
        "starved_s": run.starved_s,
        "window_stall_s": run.window_stall_s,
        "bottleneck": bottleneck(run, seconds=run.seconds, is_on_cpus=run.is_on_cpus) if run.steps else None,
        "seconds": run.seconds,
        "warnings": run.warnings,
        "outcomes": run.state.outcomes,
        "reward_failures": run.state.failures,
        "worker_deaths": run.state.faults,
        "num_replays": run.state.num_replays,
        "num_different": run.state.num_different,
        "overlong_prompts": run.num_overlong,
        "overlong_held_out_prompts": run.num_overlong_held_out,
        "evaluations": run.evaluations,
        "step_facts": run.steps,
        "page": str(page) if page else None,
    }
