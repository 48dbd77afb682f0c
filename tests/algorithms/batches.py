"""Random batches as plain lists, and the tensors that the functions under test take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from dora_rl.algorithms.aggregation import BatchCounts, token_weights
from dora_rl.algorithms.losses import loss_of
from dora_rl.algorithms.tokens import LossTokens
from dora_rl.core.recipe.algorithm import AggregationConfig
from dora_rl.core.recipe.loss_configs import (
    AnyLossConfig,
    CispoConfig,
    DecoupledPpoConfig,
    GspoConfig,
    Kimi15Config,
    PolicyGradientConfig,
    PpoConfig,
    TisConfig,
    ToprConfig,
)

LOSS_CONFIGS: list[AnyLossConfig] = [
    PolicyGradientConfig(),
    PpoConfig(),
    PpoConfig(clip_low=0.1, clip_high=0.28, dual_clip=3.0),
    PpoConfig(clip_low=0.5, clip_high=0.5, dual_clip=1.2),
    GspoConfig(),
    GspoConfig(clip_low=0.3, clip_high=0.4),
    CispoConfig(),
    CispoConfig(weight_low=0.7, weight_high=1.3),
    TisConfig(),
    TisConfig(weight_high=2.0),
    ToprConfig(),
    ToprConfig(level="token", weight_high=0.8, positive_share=0.5, negative_share=2.0),
    DecoupledPpoConfig(),
    DecoupledPpoConfig(clip_low=0.4, weight_high=1.1),
    Kimi15Config(),
    Kimi15Config(tau=2.0),
]
AGGREGATIONS = [
    AggregationConfig(over="token"),
    AggregationConfig(over="sequence"),
    AggregationConfig(over="constant", length=7),
]


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    advantage: float
    logprobs: tuple[float, ...]
    behaviour: tuple[float, ...]
    proximal: tuple[float, ...]


@st.composite
def trajectories(draw: st.DrawFn, max_gap: float = 1.5, max_tokens: int = 6) -> Trajectory:
    length = draw(st.integers(0, max_tokens))

    def column(low: float, high: float) -> list[float]:
        return draw(st.lists(st.floats(low, high, allow_subnormal=False), min_size=length, max_size=length))

    logprobs = column(-6, 0)
    gaps, proximal_gaps = column(-max_gap, max_gap), column(-max_gap, max_gap)
    return Trajectory(
        advantage=draw(st.floats(-3, 3, allow_subnormal=False)),
        logprobs=tuple(logprobs),
        behaviour=tuple(a - b for a, b in zip(logprobs, gaps, strict=True)),
        proximal=tuple(a - b for a, b in zip(logprobs, proximal_gaps, strict=True)),
    )


def batches(**limits: Any) -> st.SearchStrategy[list[Trajectory]]:
    return st.lists(trajectories(**limits), min_size=1, max_size=5)


def pack(batch: Sequence[Trajectory], dtype: torch.dtype = torch.float64) -> LossTokens:
    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    return LossTokens(
        logprobs_T=column([x for t in batch for x in t.logprobs]).requires_grad_(),
        behaviour_logprobs_T=column([x for t in batch for x in t.behaviour]),
        proximal_logprobs_T=column([x for t in batch for x in t.proximal]),
        advantages_T=column([t.advantage for t in batch for _ in t.logprobs]),
        trajectory_T=torch.tensor([i for i, t in enumerate(batch) for _ in t.logprobs], dtype=torch.int64),
        num_trajectories=len(batch),
    )


def counts_of(batch: Sequence[Trajectory]) -> BatchCounts:
    return BatchCounts(
        num_tokens=sum(len(t.logprobs) for t in batch), num_trajectories=sum(bool(t.logprobs) for t in batch)
    )


def loss_and_gradients(
    batch: Sequence[Trajectory],
    loss: AnyLossConfig,
    aggregation: AggregationConfig,
    counts: BatchCounts,
    dtype: torch.dtype = torch.float64,
) -> tuple[float, list[list[float]]]:
    """Of one micro-batch; gradients by trajectory."""
    tokens = pack(batch, dtype)
    weights_T = token_weights(aggregation, tokens.trajectory_T, len(batch), counts)
    total = (loss_of(loss).function(tokens).loss_T * weights_T).sum()
    total.backward()
    gradient_T = tokens.logprobs_T.grad
    assert gradient_T is not None
    gradients = iter(gradient_T.tolist())
    return total.item(), [[next(gradients) for _ in t.logprobs] for t in batch]
