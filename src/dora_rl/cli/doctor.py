"""`dora doctor`: is everything here that a run needs, and what to do where it is not."""

from typing import Annotated

import typer


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list and nothing else.")] = False,
) -> None:
    """Check this machine: Python, packages, devices, memory, disk, sockets.

    Exit code 1 if something is missing.
    """
    from dora_rl.cli.checking import check_machine, show

    checks = check_machine()
    show(checks, as_json=as_json)
    if any(check.state == "missing" for check in checks):
        raise typer.Exit(1)
