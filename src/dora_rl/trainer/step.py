"""One train step in progress: which groups belong to which mini-batch, and what may run already.

Knows counts and tokens, no model. A mini-batch is a run of groups in the order they come; within it, examples
wait until they fill micro-batches, or until the mini-batch is complete.
"""

from collections.abc import Iterator, Sequence

from dora_rl.core.errors import DoraError
from dora_rl.trainer.train_batch import TrainGroup

MiniBatchPart = tuple[int, int, bool]
"""Places of its first group and of the one after its last, and whether it completes its mini-batch."""


class StepError(DoraError):
    """The calls of a step do not fit together."""


class StepGroups:
    """Groups of one step, dealt out to its mini-batches."""

    def __init__(self, num_groups: int, num_updates: int, *, is_whole: bool = False) -> None:
        """With `is_whole`, nothing may run before all groups are there."""
        if num_groups < num_updates:
            raise StepError(
                f"{num_groups} groups cannot be split into {num_updates} updates",
                hint="lower updates, or raise the groups of a batch",
            )
        self._num_groups = num_groups
        self._is_whole = is_whole
        self._ends = [num_groups * (i + 1) // num_updates for i in range(num_updates)]
        self.groups: list[TrainGroup] = []

    @property
    def is_complete(self) -> bool:
        """Whether all groups of the step are here."""
        return len(self.groups) == self._num_groups

    @property
    def num_missing(self) -> int:
        """Number of groups still to come."""
        return self._num_groups - len(self.groups)

    def accept(self, groups: Sequence[TrainGroup]) -> Iterator[tuple[list[TrainGroup], list[MiniBatchPart]]]:
        """Deal groups out: those to be prepared together now, and the parts of mini-batches among them."""
        self._check(groups)
        rest = list(groups)
        if self._is_whole:
            self.groups += rest
            if rest and self.is_complete:
                firsts = [0, *self._ends[:-1]]
                yield self.groups, [(*part, True) for part in zip(firsts, self._ends, strict=True)]
            return
        while rest:
            end = next(end for end in self._ends if end > len(self.groups))
            part = rest[: end - len(self.groups)]
            rest = rest[len(part) :]
            self.groups += part
            yield part, [(0, len(part), len(self.groups) == end)]

    def _check(self, groups: Sequence[TrainGroup]) -> None:
        if len(groups) > self.num_missing:
            raise StepError(f"{len(groups)} groups for a step that lacks {self.num_missing}")
        seen = {group.id for group in self.groups}
        for group in groups:
            if group.id in seen:
                raise StepError(f"group {group.id} is in this step already")
            seen.add(group.id)
