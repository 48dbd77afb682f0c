"""The batch's loss is the same however the batch is split."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.algorithms.aggregation import BatchCounts, token_weights
from dora_rl.algorithms.losses import loss_of
from dora_rl.core.recipe.algorithm import AggregationConfig
from dora_rl.core.recipe.loss_configs import AnyLossConfig

from .batches import AGGREGATIONS, LOSS_CONFIGS, Trajectory, batches, counts_of, loss_and_gradients, pack
from .references import batch_loss

every_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda a: a.over)


@every_aggregation
@given(batch=batches())
def test_aggregation_equals_the_reference(aggregation: AggregationConfig, batch: list[Trajectory]) -> None:
    loss, _ = loss_and_gradients(batch, LOSS_CONFIGS[0], aggregation, counts_of(batch))
    terms = loss_of(LOSS_CONFIGS[0]).function(pack(batch)).loss_T.split([len(t.logprobs) for t in batch])
    # Weights are float32.
    assert loss == pytest.approx(batch_loss([x.tolist() for x in terms], aggregation), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("config", LOSS_CONFIGS, ids=str)
@given(aggregation=st.sampled_from(AGGREGATIONS), batch=batches(), data=st.data())
def test_any_split_into_micro_batches_is_the_same_loss(
    config: AnyLossConfig, aggregation: AggregationConfig, batch: list[Trajectory], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(batch)), max_size=3)))
    parts = [batch[a:b] for a, b in zip([0, *cuts], [*cuts, len(batch)], strict=True)]
    counts = counts_of(batch)
    whole_loss, whole_gradients = loss_and_gradients(batch, config, aggregation, counts)
    split = [loss_and_gradients(part, config, aggregation, counts) for part in parts]
    assert sum(loss for loss, _ in split) == pytest.approx(whole_loss, rel=1e-9, abs=1e-12)
    assert [g for _, gradients in split for g in gradients] == whole_gradients


@every_aggregation
def test_trajectories_without_tokens_change_nothing(aggregation: AggregationConfig) -> None:
    trajectory_T = torch.tensor([0, 0, 2])
    counts = BatchCounts(num_tokens=3, num_trajectories=2)
    assert torch.equal(
        token_weights(aggregation, trajectory_T, 4, counts),
        token_weights(aggregation, torch.tensor([0, 0, 1]), 2, counts),
    )


@every_aggregation
def test_a_batch_of_nothing_weighs_nothing(aggregation: AggregationConfig) -> None:
    counts = BatchCounts(num_tokens=0, num_trajectories=0)
    assert token_weights(aggregation, torch.zeros(0, dtype=torch.int64), 2, counts).tolist() == []
