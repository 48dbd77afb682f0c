"""What a run will write, at most about: checkpoints, versions, the journal."""

from collections.abc import Iterator

from dora_rl.cli.training.plan import Entry
from dora_rl.cli.training.trainer import item_bytes, num_parameters, num_trained
from dora_rl.core.recipe.trainer import TrainerConfig
from dora_rl.model.config import ModelConfig
from dora_rl.runtime.setup import LiveSetup

_MASTER_AND_MOMENTS = 12
_TOKEN_BYTES = 12
"""A token's id, its log-probability, and what a database adds."""
_CHAINS = 2
"""Anchors with their deltas that the store holds while the window moves from one to the next."""


def disk_entries(
    model: ModelConfig, setup: LiveSetup, config: TrainerConfig, sequence_tokens: int
) -> Iterator[Entry]:
    """The greatest parts."""
    version = item_bytes(config) * num_parameters(model)
    num_checkpoints = -(-setup.steps // setup.checkpoint_every_steps)
    # While the newest is written, the oldest is still there.
    num_states = min(num_checkpoints, setup.kept_trainer_states) + 1
    state = num_states * _MASTER_AND_MOMENTS * num_trained(model, config)
    yield Entry(place="disk", what=f"{num_checkpoints} checkpoints", num_bytes=num_checkpoints * version)
    yield Entry(place="disk", what=f"{num_states} trainer states", num_bytes=state)
    # Deltas are at most as large as the anchor they follow.
    yield Entry(place="disk", what="versions", num_bytes=2 * _CHAINS * version, is_estimate=True)
    steps_kept = min(setup.steps, setup.checkpoint_every_steps) + setup.control.max_staleness + 1
    tokens = steps_kept * setup.batch.trajectories * sequence_tokens
    yield Entry(place="disk", what="journal", num_bytes=tokens * _TOKEN_BYTES, is_estimate=True)
