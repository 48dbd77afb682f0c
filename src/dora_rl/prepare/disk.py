"""What a run will write, at most about: checkpoints, versions, the journal, the event log, records."""

from collections.abc import Iterator
from math import ceil

from dora_rl.core.recipe import Recipe
from dora_rl.model.config import ModelConfig
from dora_rl.prepare.plan import LedgerEntry
from dora_rl.prepare.trainer_memory import item_bytes, num_parameters, num_trained
from dora_rl.run.setup import trainer_config
from dora_rl.weights.chain import AnchorPolicy

_MIB = 2**20
_MASTER_AND_MOMENTS = 12

# Measured on runs of 500 to 67,000 trajectories, and rounded up.
_EVENT_BYTES = 640
"""Of a trajectory in the event log: its start, end and score; 480 to 500 where none moves."""
_JOURNAL_BYTES = 640
"""The same in the journal, where they stay; 410 to 480."""
_TOKEN_BYTES = 12
"""A token's id, its log-probability, and what a database adds, until a checkpoint covers it; 10."""
_JOURNAL_LOG_BYTES = 8 * _MIB
"""What SQLite writes ahead before it is taken into the journal, and the first pages of every table."""
_STEP_BYTES = 8192
"""Metrics of a step, in their own file and for TensorBoard; 6,200."""
_COMPLETION_BYTES, _TEXT_BYTES = 200, 8
"""A completion that is written down, and of each of its tokens."""
_ROW_BYTES = 256
"""A row with its columns, beside its prompt's tokens."""
_REPORT_BYTES = _MIB
_CHANGED = {"bfloat16": 0.25, "float32": 0.75}
"""Size of a change of weights beside a whole version; 0.02 to 0.1, and 0.65."""


def disk_entries(
    model: ModelConfig, recipe: Recipe, sequence_tokens: int, num_rows: int
) -> Iterator[LedgerEntry]:
    """The greatest parts of what a run of a completed recipe writes."""
    config = trainer_config(recipe)
    version = item_bytes(config) * num_parameters(model)
    num_checkpoints = -(-recipe.steps // recipe.checkpoints.every)
    # While the newest is written, the oldest is still there.
    num_states = min(num_checkpoints, recipe.checkpoints.keep) + 1
    state = _MASTER_AND_MOMENTS * num_trained(model, config) + config.kept_versions * version
    yield LedgerEntry(
        place="disk", what=f"{num_checkpoints} checkpoints", num_bytes=num_checkpoints * version
    )
    yield LedgerEntry(place="disk", what=f"{num_states} trainer states", num_bytes=num_states * state)
    num_versions = _stored_versions(recipe.control.max_staleness + 1, _CHANGED[config.serving_dtype])
    num_bytes = round(min(num_versions, 2 * (recipe.steps + 1)) * version)
    yield _estimate("versions", num_bytes)
    if recipe.warm_start.steps:
        yield LedgerEntry(place="disk", what="initial model", num_bytes=version)
    num_trajectories = _trajectories(recipe)
    steps_kept = min(recipe.steps, recipe.checkpoints.every) + recipe.control.max_staleness + 1
    num_tokens = steps_kept * recipe.batch.trajectories * sequence_tokens
    journal = num_trajectories * _JOURNAL_BYTES + num_tokens * _TOKEN_BYTES + _JOURNAL_LOG_BYTES
    yield _estimate("journal", journal)
    yield _estimate("event log", num_trajectories * _EVENT_BYTES)
    yield _estimate("records", _records(recipe, sequence_tokens, num_rows))


def _estimate(what: str, num_bytes: int) -> LedgerEntry:
    return LedgerEntry(place="disk", what=what, num_bytes=num_bytes, is_estimate=True)


def _stored_versions(num_live: int, changed: float) -> float:
    """Whole versions and changes that the store holds for a window, in sizes of one version."""
    policy = AnchorPolicy()
    chain = min(policy.every, ceil(policy.chain_share / changed))
    num_anchors = ceil((num_live + 1) / chain) + 1
    return num_anchors + changed * max(policy.kept_deltas + 1, num_live + 1 + chain)


def _trajectories(recipe: Recipe) -> int:
    """To be trained on and evaluated; as many again where groups are filtered out and replaced."""
    groups = recipe.steps * (recipe.batch.groups + recipe.control.redundant_groups)
    num_trained = groups * recipe.batch.group_size * (2 if recipe.control.filter_zero_variance else 1)
    evaluation = recipe.evaluation
    if not evaluation.every:
        return num_trained
    return num_trained + (recipe.steps // evaluation.every + 2) * (evaluation.max_rows or 0)


def _records(recipe: Recipe, sequence_tokens: int, num_rows: int) -> int:
    """Metrics, completions, rows and the report."""
    completions = recipe.run.log_completions * (_COMPLETION_BYTES + _TEXT_BYTES * sequence_tokens)
    rows = num_rows * (_ROW_BYTES + _TEXT_BYTES * (sequence_tokens - (recipe.response.max_new_tokens or 0)))
    return recipe.steps * (_STEP_BYTES + completions) + rows + _REPORT_BYTES
