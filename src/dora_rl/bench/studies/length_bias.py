"""How much shorter than what was started are the trajectories that were trained on?

Watches a simulated run and asks the truth for lengths, those of aborted trajectories too. A rule that trains
on all it started has no bias, whatever order it keeps; one that aborts what takes longest has.
"""

from dora_rl.core.decisions import Admit, Close, Decision, Take
from dora_rl.core.inputs import Input
from dora_rl.core.recipe import Recipe
from dora_rl.sim.truth import Truth


class LengthBias:
    """Follows groups from their admission to a batch; `share` compares lengths at the end of a run."""

    def __init__(self, recipe: Recipe) -> None:
        self._truth = Truth(recipe.task, recipe.seed)
        self._group_size = recipe.batch.group_size
        self._lengths: dict[int, int] = {}
        self._closed: set[int] = set()
        self._trained: list[int] = []

    def watch(self, event: Input, decisions: list[Decision]) -> None:
        """Take in one input's decisions; a step that is lost would count twice, so faults must be off."""
        for decision in decisions:
            if isinstance(decision, Admit):
                for member in range(self._group_size):
                    tokens = self._truth.response_tokens(decision.epoch, decision.row, member, 0)
                    self._lengths[decision.group * self._group_size + member] = tokens
            elif isinstance(decision, Close):
                self._closed.update(decision.members)
            elif isinstance(decision, Take):
                self._trained += [
                    self._lengths[trajectory]
                    for group in decision.groups
                    for trajectory in range(group * self._group_size, (group + 1) * self._group_size)
                    if trajectory not in self._closed
                ]

    @property
    def share(self) -> float:
        """Mean length of what was trained on over that of what was started, minus 1: below 0 is shorter."""
        started = sum(self._lengths.values()) / len(self._lengths)
        return sum(self._trained) / len(self._trained) / started - 1.0

    @property
    def trained_tokens(self) -> int:
        """Response tokens of the trajectories that were trained on."""
        return sum(self._trained)
