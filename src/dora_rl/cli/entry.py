"""Where the command `dora` begins: an interrupt while it is being imported ends it as one later would."""

import sys


def main() -> None:
    """Run the command line; an interrupt while it is being imported exits with 130, as typer has it later."""
    try:
        from dora_rl.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
