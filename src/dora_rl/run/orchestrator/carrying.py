"""Decisions become commands, in the order they were decided, but pauses come last.

The sibling of the simulator's world. What is decided about an instance that died meanwhile is left: control
hears of the death and decides again.
"""

from collections.abc import Callable, Sequence
from typing import Any

from dora_rl.core import decisions as do
from dora_rl.core.decisions import Decision
from dora_rl.engines.requests import Request, Sampling, Stopping, StreamKey
from dora_rl.run import messages as say
from dora_rl.run.orchestrator.instances import Instances
from dora_rl.run.orchestrator.moves import Moves
from dora_rl.run.orchestrator.requests import Draft, Requests
from dora_rl.run.orchestrator.scoring import Scoring
from dora_rl.run.orchestrator.training import Training
from dora_rl.run.prompts import PromptTable
from dora_rl.run.setup import RunSetup


class Carrying:
    """Acts."""

    def __init__(
        self,
        setup: RunSetup,
        prompts: PromptTable,
        instances: Instances,
        requests: Requests,
        training: Training,
        scoring: Scoring,
        *,
        max_staleness: int,
    ) -> None:
        self._setup = setup
        self._prompts = prompts
        self._instances = instances
        self._requests = requests
        self._training = training
        self._scoring = scoring
        self._max_staleness = max_staleness
        self.moves: Moves
        self._acts: dict[type[Decision], Callable[[Any], None]] = {
            do.Start: self._start,
            do.Move: lambda d: self.moves.begin(d),
            do.Abort: self._abort,
            do.Interrupt: self._interrupt,
            do.Load: lambda d: self._tell(d.instance, say.LoadVersion(version=d.version, drop=d.drop)),
            do.Drop: lambda d: self._tell(d.instance, say.DropVersion(version=d.version)),
            do.Lend: lambda d: self._tell(d.instance, say.LendDevice()),
            do.Return: lambda d: self._tell(d.instance, say.ReturnDevice()),
            do.Restart: self._restart,
            do.Hand: training.hand,
            do.Take: training.take,
            do.Close: self._close,
            do.Retire: lambda d: training.retire(d.version),
            # Recorded, and nobody's task: Admit, Wait, Finish; and Park: an engine does that by itself.
        }

    def carry_out(self, decisions: Sequence[Decision]) -> None:
        # Last, what makes an instance pause: it decodes while the batch is on its way to the trainer.
        for decision in sorted(decisions, key=lambda each: isinstance(each, do.Lend)):
            act = self._acts.get(type(decision))
            if act is not None:
                act(decision)

    def _tell(self, instance: int, message: say.Message) -> None:
        self._instances.send(instance, message)

    # --- requests -------------------------------------------------------------------------------

    def _start(self, start: do.Start) -> None:
        self._requests.draft(start)
        placed = self._requests.place(start.trajectory, start.instance)
        self.generate(start.trajectory, placed.number)

    def generate(self, trajectory: int, number: int) -> None:
        """Go on with a trajectory behind what exists of it, under its request of this number."""
        placed = self._requests.of(trajectory)
        if placed is not None and placed.number == number:
            request = self._request(number, self._requests.drafts[trajectory])
            self._tell(placed.instance, say.StartRequest(request=request))

    def _request(self, number: int, draft: Draft) -> Request:
        start = draft.start
        return Request(
            id=number,
            version=start.version,
            prompt=self._prompts[start.row].token_ids,
            key=StreamKey(
                seed=self._setup.recipe.seed,
                epoch=start.epoch,
                row=start.row,
                member=start.member,
                attempt=start.attempt,
            ),
            sampling=self._setup.evaluation_sampling if start.evaluation else self._sampling,
            stopping=Stopping(
                max_new_tokens=self._setup.max_new_tokens - len(draft.tokens),
                stop_strings=self._setup.recipe.response.stop_strings,
            ),
            continued=tuple(draft.tokens),
            group=start.group,
            deadline=start.version + self._max_staleness,
        )

    @property
    def _sampling(self) -> Sampling:
        return self._setup.recipe.sampling

    def _abort(self, abort: do.Abort) -> None:
        """Wherever it is: on its way it has left one place and may not have reached the other."""
        placed = self._requests.of(abort.trajectory)
        if placed is not None and placed.instance == abort.instance:
            self._requests.forget(abort.trajectory)
            self._tell(abort.instance, say.AbortRequest(request=placed.number))
            self.moves.forget(abort.trajectory)

    def _interrupt(self, interrupt: do.Interrupt) -> None:
        self._tell(interrupt.instance, say.InterruptAll(version=interrupt.version))

    def _close(self, close: do.Close) -> None:
        for trajectory in close.members:
            self._requests.drafts.pop(trajectory, None)
            self._scoring.look_at(trajectory, close.group)

    # --- instances ------------------------------------------------------------------------------

    def _restart(self, restart: do.Restart) -> None:
        for placed in self._requests.on(restart.instance):
            self._requests.forget(placed.trajectory)
            self.moves.forget(placed.trajectory)
        if self._instances.has_joined(restart.instance):
            self._instances.restart(restart.instance, restart.reason)
