"""What a run asks of a trainer: plain data in and out, torch-free. Weights are the publisher's matter."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dora_rl.trainer.records import Group, TrainBatch

Metrics = dict[str, float]


class Trains(Protocol):
    """Turns version n into n + 1 with exactly the groups of one step."""

    @property
    def version(self) -> int:
        """That the next step, or the one in progress, trains."""
        ...

    @property
    def streaming_refusal(self) -> str | None:
        """Why nothing can run before the batch is complete; None where it can."""
        ...

    def train(self, batch: TrainBatch) -> Metrics:
        """One whole step."""
        ...


class Streams(Protocol):
    """A step whose groups come one by one; where streaming is refused, they are only collected."""

    def begin_step(self, num_groups: int) -> None:
        """Start a step that takes exactly so many groups."""
        ...

    def add(self, groups: Sequence[Group]) -> None:
        """Take in finished groups, and run what can run."""
        ...

    def finish_step(self) -> Metrics:
        """End the step: the next version is what the weights are now."""
        ...


class Publishes(Protocol):
    """Where a version's weights come from."""

    def served_tensors(self) -> Mapping[str, Any]:
        """Every parameter in the serving dtype under the Decoder's own name; copied before the next step."""
        ...
