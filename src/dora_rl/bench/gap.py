"""How far the log-probabilities of trainer and engine are apart, for the same tokens and weights.

Both run one decoder; what differs is the order of sums, and in bfloat16 where they are rounded. The gap is
what an importance ratio of a trajectory just generated differs from one by.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from msgspec.structs import replace
from torch import Tensor

from dora_rl.bench.device import DeviceKind, backend_of
from dora_rl.core.recipe.trainer_config import TrainerConfig
from dora_rl.core.record import Record
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.requests import Finished, Request, Stopping, StreamKey
from dora_rl.model.config import Dtype, ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.random_models import SHAPES, random_weights
from dora_rl.trainer.frozen_scores import scored
from dora_rl.trainer.ranks import Alone
from dora_rl.trainer.train_batch import TrainTrajectory
from dora_rl.trainer.trainer_factory import policy_of


class LogprobGap(Record, frozen=True):
    """How far log-probabilities of engine and trainer are apart in one dtype."""

    dtype: Dtype
    is_replayed: bool
    """Whether the trainer took the experts that the engine took."""
    num_tokens: int
    mean: float
    max: float
    mean_logprob: float
    """Mean log-probability of the tokens, to judge the gap by."""


def gaps(device: DeviceKind, shape: str, *, num_requests: int, num_tokens: int) -> list[LogprobGap]:
    """Measure the gap in float32 and bfloat16: generate, then score the same tokens with the trainer.

    With a mixture of experts on a CPU, also with the experts that the engine took.
    """
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    return [
        gap
        for dtype in dtypes
        for gap in _gaps(device, replace(SHAPES[shape], dtype=dtype), num_requests, num_tokens)
    ]


def _gaps(device: DeviceKind, model: ModelConfig, num_requests: int, num_tokens: int) -> Iterator[LogprobGap]:
    weights = dict(random_weights(model, seed=0, device=device, dtype=getattr(torch, model.dtype)))
    records = model.experts is not None and device == "cpu"
    trajectories = _generated(model, device, weights, num_requests, num_tokens, records_experts=records)
    for is_replayed in (False, True) if records else (False,):
        config = TrainerConfig(serving_dtype=_trained(model.dtype), router_replay=is_replayed)
        yield _gap(model, trajectories, _scored(model, device, weights, trajectories, config), config)


def _gap(
    model: ModelConfig, trajectories: list[TrainTrajectory], logprobs: list[Tensor], config: TrainerConfig
) -> LogprobGap:
    recorded = [torch.tensor(each.logprobs) for each in trajectories]
    distances = torch.cat([(own - other).abs() for own, other in zip(logprobs, recorded, strict=True)])
    return LogprobGap(
        dtype=model.dtype,
        is_replayed=config.router_replay,
        num_tokens=len(distances),
        mean=float(distances.mean()),
        max=float(distances.max()),
        mean_logprob=float(torch.cat(recorded).mean()),
    )


def _generated(
    model: ModelConfig,
    device: DeviceKind,
    weights: dict[str, Tensor],
    num_requests: int,
    num_tokens: int,
    *,
    records_experts: bool,
) -> list[TrainTrajectory]:
    num_positions = 64 + num_tokens
    limits = Limits(
        num_blocks=num_requests * (num_positions // 32 + 2),
        max_running=num_requests,
        step_tokens=max(512, num_requests),
        max_positions=num_positions,
    )
    config = EngineConfig(
        limits=limits,
        dtype=model.dtype,
        max_versions=1,
        records_experts=records_experts,
        device_bytes=64 * 2**30,
    )
    engine = NativeEngine(model, config, Stops(()), backend=backend_of(device))
    engine.load_version(0, weights)
    requests = [_request(number, model.vocab_size, num_tokens) for number in range(num_requests)]
    for request in requests:
        engine.submit(request)
    ended = {event.id: event for event in engine.run() if isinstance(event, Finished)}
    return [_trajectory(request, ended[request.id]) for request in requests]


def _request(number: int, vocab_size: int, num_tokens: int) -> Request:
    generator = torch.Generator().manual_seed(number)
    prompt = tuple(torch.randint(0, vocab_size, (16 + number % 48,), generator=generator).tolist())
    stopping = Stopping(max_new_tokens=num_tokens, is_length_prescribed=True)
    return Request(id=number, version=0, prompt=prompt, key=StreamKey(seed=0, row=number), stopping=stopping)


def _trajectory(request: Request, ended: Finished) -> TrainTrajectory:
    return TrainTrajectory(
        prompt=request.prompt,
        response=ended.tokens,
        logprobs=ended.logprobs,
        experts=ended.experts,
        version=0,
        reward=0.0,
    )


def _scored(
    model: ModelConfig,
    device: DeviceKind,
    weights: dict[str, Tensor],
    trajectories: list[TrainTrajectory],
    config: TrainerConfig,
) -> list[Tensor]:
    decoder = Decoder.empty(model, device=device).requires_grad_(False)
    decoder.load_state_dict(weights)
    policy = policy_of(decoder, config)
    logprobs, _ = scored(policy, trajectories, max_tokens=8192, ranks=Alone(), device=torch.device(device))
    return logprobs


def _trained(dtype: Dtype) -> Literal["bfloat16", "float32"]:
    assert dtype != "float16", "not a dtype to train in"
    return dtype
