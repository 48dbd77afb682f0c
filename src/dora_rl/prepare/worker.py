"""The preparing worker: `python -m dora_rl.prepare.worker ADDRESS`.

A process of its own because models and tokenizers come with torch, and because it runs the user's code, which
may hang, print or end it. It says what it is doing, so its owner can name that, and end it where it has a
limit. Rows are read and tokenized once: the plan is made of them, and the run begins with them.
"""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dora_rl.core.errors import DoraError, missing_package
from dora_rl.core.lasting_output import lasting_output
from dora_rl.core.recipe.free_options import check_environment
from dora_rl.launch.breaking import broken, telling_why
from dora_rl.launch.channel import Channel
from dora_rl.launch.messages import Stop
from dora_rl.prepare.messages import (
    InputsWritten,
    Planned,
    PlanRun,
    PrepareCommand,
    PrepareSampling,
    PrepareServing,
    SamplingPrepared,
    TakeNewest,
)

if TYPE_CHECKING:
    from dora_rl.prepare.planner import RunPlanner
    from dora_rl.prepare.serving_inputs import ServingInputs
    from dora_rl.run.run_setup import RunSetup


def main(address: str) -> None:
    """Obey the owner's commands until told to stop."""
    channel = Channel.connect(address, PrepareCommand)
    planner: RunPlanner | None = None
    served: ServingInputs | None = None
    # Its output is the owner's stderr, which may be a terminal that is gone by then.
    with telling_why(channel), lasting_output():
        try:
            while not isinstance(command := channel.receive(), Stop):
                # Each piece has a limit of its own, which the owner keeps.
                with channel.kept_alive(math.inf):
                    if isinstance(command, PlanRun):
                        check_environment(command.recipe)
                        # Not before there is somebody to be told that torch, with which it comes, is missing.
                        try:
                            from dora_rl.prepare import planner as planning
                        except ModuleNotFoundError as error:
                            raise missing_package(error, needed_for="training") or error from error
                        planner = planning.RunPlanner(
                            command.recipe,
                            command.run_directory,
                            channel.send,
                            command.given,
                            command.cluster,
                        )
                        channel.send(Planned(plan=planner.plan()))
                    elif isinstance(command, PrepareSampling):
                        channel.send(SamplingPrepared(setup=_sampling(command, channel)))
                    elif isinstance(command, PrepareServing):
                        served = _served(command, channel)
                    elif isinstance(command, TakeNewest):
                        assert served is not None, "serving is prepared first"
                        channel.send(served.take_newest())
                    else:
                        assert planner is not None, "a run is planned first"
                        planner.write_inputs(Path(command.directory))
                        channel.send(InputsWritten())
        except DoraError as error:
            # Its sentence is all there is to say; a traceback would stand beside it on the owner's terminal.
            channel.send(broken(error))
            channel.leave(1)
    channel.leave()


def _sampling(command: PrepareSampling, channel: Channel) -> "RunSetup":
    try:
        from dora_rl.prepare.sampling_inputs import prepare_sampling
    except ModuleNotFoundError as error:
        raise missing_package(error, needed_for="generating") or error from error
    return prepare_sampling(
        command.recipe, Path(command.directory), channel.send, command.given, is_judged=command.is_judged
    )


def _served(command: PrepareServing, channel: Channel) -> "ServingInputs":
    try:
        from dora_rl.prepare import serving_inputs
    except ModuleNotFoundError as error:
        raise missing_package(error, needed_for="serving") or error from error
    served = serving_inputs.ServingInputs(command, channel.send)
    channel.send(served.prepared())
    return served


if __name__ == "__main__":
    main(sys.argv[1])
