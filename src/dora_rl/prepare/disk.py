"""Disk space a run will need: an upper estimate of checkpoints, versions, journal, event log and records."""

from collections.abc import Iterator
from math import ceil

from dora_rl.core.recipe import Recipe
from dora_rl.model.config import ModelSizes
from dora_rl.prepare.run_plan import LedgerEntry
from dora_rl.prepare.trainer_memory import item_bytes, num_parameters, num_trained
from dora_rl.run.run_setup import trainer_config
from dora_rl.weights.chain import AnchorPolicy

_MIB = 2**20
_MASTER_AND_MOMENTS = 12

# Measured on runs of 500 to 67,000 trajectories, and rounded up.
_EVENT_BYTES = 640
"""Bytes of a trajectory in the event log (start, end and score); 480 to 500 measured where none moves."""
_VALUE_BYTES = 48
"""Bytes of one reward function's value beside its name; 25 to 45 measured."""
_JOURNAL_BYTES = 640
"""Bytes of a trajectory that stay in the journal; 410 to 480 measured."""
_TOKEN_BYTES = 12
"""Bytes of a token in the journal until all kept checkpoints cover it: id, logprob, overhead; 10."""
_JOURNAL_LOG_BYTES = 8 * _MIB
"""Bytes of SQLite's write-ahead log, and of the first pages of every table."""
_STEP_BYTES = 8192
"""Bytes of a step's metrics, in their own file and for TensorBoard; 6,200 measured."""
_COMPLETION_BYTES, _TEXT_BYTES = 200, 8
"""Bytes of a completion that is written down, and of each of its tokens as text."""
_ROW_BYTES = 256
"""Bytes of a row with its columns, beside the tokens of its prompt."""
_REPORT_BYTES = _MIB
_CHANGED = {"bfloat16": 0.25, "float32": 0.75}
"""Size of a stored change of weights relative to a whole version; 0.02 to 0.1 measured, and 0.65."""


def disk_entries(
    model: ModelSizes, recipe: Recipe, sequence_tokens: int, num_rows: int
) -> Iterator[LedgerEntry]:
    """What a run of a completed recipe writes, in bytes: its greatest parts."""
    config = trainer_config(recipe)
    version = item_bytes(config) * num_parameters(model)
    num_checkpoints = -(-recipe.steps // recipe.checkpoints.every)
    # While the newest is written, the oldest is still there.
    num_models = min(num_checkpoints, recipe.checkpoints.num_models) + 1
    num_states = min(num_checkpoints, recipe.checkpoints.keep) + 1
    state = _MASTER_AND_MOMENTS * num_trained(model, config) + config.kept_versions * version
    model_bytes = version if config.lora is None or config.lora.merged_checkpoints else 0
    if config.lora is not None:
        model_bytes += 4 * num_trained(model, config)
    yield LedgerEntry(place="disk", what=f"{num_models} checkpoints", num_bytes=num_models * model_bytes)
    yield LedgerEntry(place="disk", what=f"{num_states} trainer states", num_bytes=num_states * state)
    num_versions = _stored_versions(recipe.control.staleness_bound + 1, _CHANGED[config.serving_dtype])
    num_bytes = round(min(num_versions, 2 * (recipe.steps + 1)) * version)
    yield _estimate("versions", num_bytes)
    if recipe.warm_start.steps:
        yield LedgerEntry(place="disk", what="initial model", num_bytes=version)
    num_trajectories = _trajectories(recipe)
    # Tokens stay until the oldest kept checkpoint covers them.
    steps_covered = recipe.checkpoints.keep * recipe.checkpoints.every
    steps_kept = min(recipe.steps, steps_covered) + recipe.control.staleness_bound + 1
    num_tokens = steps_kept * recipe.batch.trajectories * sequence_tokens
    values = num_trajectories * max(1, len(recipe.rewards)) * _VALUE_BYTES
    journal = num_trajectories * _JOURNAL_BYTES + values + num_tokens * _TOKEN_BYTES + _JOURNAL_LOG_BYTES
    yield _estimate("journal", journal)
    yield _estimate("event log", num_trajectories * _EVENT_BYTES + values)
    yield _estimate("records", _records(recipe, sequence_tokens, num_rows))


def _estimate(what: str, num_bytes: int) -> LedgerEntry:
    return LedgerEntry(place="disk", what=what, num_bytes=num_bytes, is_estimate=True)


def _stored_versions(num_live: int, changed: float) -> float:
    """Disk space the store needs for a window of versions, in sizes of one whole version."""
    policy = AnchorPolicy()
    chain = min(policy.every, ceil(policy.chain_share / changed))
    num_anchors = ceil((num_live + 1) / chain) + 1
    return num_anchors + changed * max(policy.kept_deltas + 1, num_live + 1 + chain)


def _trajectories(recipe: Recipe) -> int:
    """Trajectories to be trained on and evaluated; as many again where filtered groups are replaced."""
    groups = recipe.steps * (recipe.batch.groups + recipe.control.redundant_groups)
    num_trained = groups * recipe.batch.group_size * (2 if recipe.control.filter_zero_variance else 1)
    evaluation = recipe.evaluation
    if not evaluation.every:
        return num_trained
    return (
        num_trained + (recipe.steps // evaluation.every + 2) * (evaluation.max_rows or 0) * evaluation.samples
    )


def _records(recipe: Recipe, sequence_tokens: int, num_rows: int) -> int:
    """Bytes of metrics, completions, rows and the report."""
    completions = recipe.run.log_completions * (_COMPLETION_BYTES + _TEXT_BYTES * sequence_tokens)
    rows = num_rows * (_ROW_BYTES + _TEXT_BYTES * (sequence_tokens - (recipe.response.max_new_tokens or 0)))
    return recipe.steps * (_STEP_BYTES + completions) + rows + _REPORT_BYTES
