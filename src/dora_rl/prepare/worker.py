"""The preparing worker: `python -m dora_rl.prepare.worker ADDRESS`.

A process of its own because models and tokenizers come with torch, and because it runs the user's code, which
may hang, print or end it. It says what it is doing, so its owner can name that, and end it where it has a
limit. Rows are read and tokenized once: the plan is made of them, and the run begins with them.
"""

import math
import shutil
import sys
from pathlib import Path

from dora_rl.core.errors import DoraError
from dora_rl.launch.breaking import broken, telling_why
from dora_rl.launch.channel import Channel
from dora_rl.launch.messages import Stop
from dora_rl.prepare.messages import (
    Doing,
    InputsWritten,
    Planned,
    PlanRun,
    PrepareCommand,
    Report,
    WriteInputs,
)
from dora_rl.prepare.planner import Planner
from dora_rl.prepare.run_inputs import Inputs
from dora_rl.prepare.run_plan import RunPlan
from dora_rl.prepare.warm_start import write_initial_model
from dora_rl.run.run_layout import LiveLayout
from dora_rl.run.run_setup import RunSetup


class Preparer:
    """Does the work for one recipe: plans the run, then writes what it begins with."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._inputs: Inputs | None = None
        self._setup: RunSetup | None = None
        self._given_model: str | None = None

    def plan(self, command: PlanRun) -> RunPlan:
        """Plan the run: everything that can be known before it starts."""
        planner = Planner(command.recipe, command.run_directory, self._report, command.given)
        plan = planner.plan()
        self._inputs, self._setup, self._given_model = planner.inputs, plan.setup, command.given.model
        return plan

    def write(self, command: WriteInputs) -> None:
        """Write prompts, the tokenizer and, after a warm start, the model."""
        assert self._inputs is not None, "a run is planned first"
        assert self._setup is not None, "a run is planned first"
        layout, recipe = LiveLayout(root=Path(command.directory)), self._setup.recipe
        self._inputs.prompts.write(layout.prompts)
        layout.tokenizer.write_text(self._inputs.tokenizer, encoding="utf-8")
        if not (total := recipe.warm_start.steps):
            if self._given_model is not None:
                shutil.copytree(self._given_model, layout.initial_model)
            return
        limit = ("patience.step_s", recipe.patience.step_s)

        def done(steps: int) -> None:
            self._report(Doing(what="working on the warm start", limit=limit, done=steps, total=total))

        done(0)
        write_initial_model(self._setup, self._inputs.prompts, layout.initial_model, done)


def main(address: str) -> None:
    """Obey the owner's commands until told to stop."""
    channel = Channel.connect(address, PrepareCommand)
    preparer = Preparer(channel.send)
    with telling_why(channel):
        try:
            while not isinstance(command := channel.receive(), Stop):
                # Each piece has a limit of its own, which the owner keeps.
                with channel.kept_alive(math.inf):
                    channel.send(_obey(preparer, command))
        except DoraError as error:
            # Its sentence is all there is to say; a traceback would stand beside it on the owner's terminal.
            channel.send(broken(error))
            channel.leave(1)


def _obey(preparer: Preparer, command: PlanRun | WriteInputs) -> Planned | InputsWritten:
    if isinstance(command, PlanRun):
        return Planned(plan=preparer.plan(command))
    preparer.write(command)
    return InputsWritten()


if __name__ == "__main__":
    main(sys.argv[1])
