"""What a run's trainer process needs of a trainer, torch-free: steps, the weights to serve, checkpoints.

With several ranks each has a trainer of its own, told the same in the same order; the first speaks for all.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dora_rl.trainer.train_batch import TrainGroup

Metrics = dict[str, float]


class TrainerCheckpoint(Protocol):
    """A version with everything the next step depends on, to be written to disk."""

    @property
    def is_apart(self) -> bool:
        """Whether training may go on while this checkpoint is written."""
        ...

    def write(self, directory: Path, *, state: str, origin: Path) -> None:
        """Write a Hugging Face directory with the tokenizer of `origin`, and the trainer's state below it."""
        ...


class PolicyTrainer(Protocol):
    """The trainer of a run: it trains, is served and is resumed. Every rank calls everything.

    A step turns version n into n + 1 with exactly its groups, which may come one by one.
    """

    @property
    def version(self) -> int:
        """The version that the next step, or the one in progress, trains."""
        ...

    def begin_step(self, num_groups: int) -> None:
        """Start a step that takes exactly so many groups."""
        ...

    def add(self, groups: Sequence[TrainGroup]) -> None:
        """Take in finished groups of the step, and run what can run before the others are there."""
        ...

    def finish_step(self) -> Metrics:
        """End the step: the next version is what the weights are now."""
        ...

    def abandon_step(self) -> None:
        """Forget a step that has made no update yet, as if it had not begun."""
        ...

    @property
    def is_first(self) -> bool:
        """Whether this rank publishes, writes and speaks for all."""
        ...

    def served_tensors(self) -> Mapping[str, Any]:
        """Every parameter as it is served, on the first rank; copy them before the next step."""
        ...

    def rehearse(self) -> None:
        """Do beforehand what the first step would wait for, and change nothing."""
        ...

    def prepare_checkpoints(self) -> None:
        """Do beforehand what the first checkpoint would wait for."""
        ...

    def take_checkpoint(self) -> TrainerCheckpoint | None:
        """Take a checkpoint of the version between two steps; None on every rank but the first."""
        ...

    def load_checkpoint(self, state: Path) -> None:
        """Go on exactly as the trainer that wrote this state would have."""
        ...
