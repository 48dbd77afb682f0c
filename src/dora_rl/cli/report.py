"""`dora report`: what came of a run, in words, and as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="The directory of a run, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="The page.  [default: report.html in the run]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Sum up a run and write a page with its curves, its timeline and completions beside their rewards.

    Works on runs that go on, were interrupted or crashed.
    """
    from dora_rl.cli.reporting import report_run

    report_run(run, out, as_json=as_json)
