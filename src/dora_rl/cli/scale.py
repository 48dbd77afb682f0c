"""`dora scale`: give a run that goes on more instances, or fewer."""

from pathlib import Path
from typing import Annotated

import typer


def scale(
    run: Annotated[Path, typer.Argument(help="The directory of a run that is going on.")],
    instances: Annotated[int, typer.Option(min=1, help="How many instances it shall have.")],
) -> None:
    """Change the number of instances of a run while it goes on.

    Those beyond the number end, and what they were generating goes on elsewhere, behind its tokens; new ones
    join as soon as they are up, on a cluster as soon as a node has room.
    """
    from dora_rl.run.wished_instances import wish_instances

    wish_instances(run, instances)
    typer.echo(f"the run goes on with {instances} instances")
