"""A micro-batch on its device: sequences packed end to end, and what the loss knows of each policy token.

Built on the host from whole examples and copied over without waiting. T counts all tokens, P policy tokens;
a policy token is predicted at the token before it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from dora_rl.model.packed_sequences import Packed
from dora_rl.trainer.examples import Example
from dora_rl.trainer.train_batch import TrainTrajectory

MAX_STALENESS = 15
"""The largest staleness counted by itself: older tokens are counted with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTokens:
    """The policy tokens of some trajectories, in order, as the loss sees them."""

    advantages_P: Tensor
    weights_P: Tensor
    behaviour_P: Tensor
    trajectory_P: Tensor
    staleness_P: Tensor
    is_comparable_P: Tensor
    """Whether the trainer's logprobs under the same weights are known, for comparison (bool)."""
    recomputed_P: Tensor | None = None
    """The trainer's logprobs under the version that drew each token, where such versions are kept."""
    reference_P: Tensor | None = None
    proximal_P: Tensor | None = None
    returns_P: Tensor | None = None
    old_values_P: Tensor | None = None
    """The critic's values from which the advantages were taken."""

    def to(self, device: torch.device) -> "PolicyTokens":
        """The same tokens on a device."""
        return self._each(lambda values_P: on_device(values_P, device))

    def __getitem__(self, rows: slice) -> "PolicyTokens":
        return self._each(lambda values_P: values_P[rows])

    def _each(self, change: Callable[[Tensor], Tensor]) -> "PolicyTokens":
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        changed: dict[str, Any] = {k: None if own is None else change(own) for k, own in values.items()}
        return PolicyTokens(**changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Packed sequences and where in them policy tokens are predicted."""

    packed: Packed
    predicted_at_P: Tensor
    targets_P: Tensor
    counts: tuple[int, ...]
    """Number of policy tokens of each trajectory, which may be several sequences."""
    temperature: float
    experts: tuple[bytes, ...] = ()
    """The experts recorded behind each policy token; empty where there are none of any."""

    def to(self, device: torch.device) -> "Sequences":
        """The same sequences on a device."""
        packed = Packed(
            tokens_T=on_device(self.packed.tokens_T, device),
            positions_T=on_device(self.packed.positions_T, device),
            lengths=self.packed.lengths,
        )
        return Sequences(
            packed=packed,
            predicted_at_P=on_device(self.predicted_at_P, device),
            targets_P=on_device(self.targets_P, device),
            counts=self.counts,
            temperature=self.temperature,
            experts=self.experts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The input of one forward and backward pass."""

    sequences: Sequences
    tokens: PolicyTokens

    def to(self, device: torch.device) -> "MicroBatch":
        """The same micro-batch on a device."""
        return MicroBatch(sequences=self.sequences.to(device), tokens=self.tokens.to(device))


def sequences_of(trajectories: Sequence[TrainTrajectory]) -> Sequences:
    """Pack whole trajectories of one temperature; without any, one token that predicts nothing."""
    rows = [row for each in trajectories for row in _rows(each)]
    lengths = tuple(len(tokens) for tokens, _ in rows) or (1,)
    firsts = accumulate(lengths[:-1], initial=0)
    places = [first + positions for (_, positions), first in zip(rows, firsts, strict=False)]
    tokens_T = torch.tensor(list(chain.from_iterable(tokens for tokens, _ in rows)) or [0])
    predicted_at_P = torch.cat([torch.zeros(0, dtype=torch.int64), *places]) - 1
    return Sequences(
        packed=Packed(
            tokens_T=tokens_T,
            positions_T=torch.cat([torch.arange(length) for length in lengths]),
            lengths=lengths,
        ),
        predicted_at_P=predicted_at_P,
        targets_P=tokens_T[predicted_at_P + 1],
        counts=tuple(each.num_policy_tokens for each in trajectories),
        temperature=sampled_at(trajectories[0]) if trajectories else 1.0,
        experts=_experts(trajectories),
    )


def _rows(trajectory: TrainTrajectory) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """The sequences of a trajectory, one a branch, each with the positions of the policy's tokens in it."""
    tokens = (*trajectory.prompt, *trajectory.response)
    if trajectory.is_policy:
        yield tokens, torch.tensor(trajectory.policy_positions, dtype=torch.int64)
    else:
        yield tokens, torch.arange(len(trajectory.prompt), len(tokens))
    for branch in trajectory.branches:
        yield branch.tokens, torch.tensor(branch.is_policy).nonzero().flatten()


def _experts(trajectories: Sequence[TrainTrajectory]) -> tuple[bytes, ...]:
    if not any(each.experts for each in trajectories):
        return ()
    recorded = (each.experts or (b"",) * each.num_policy_tokens for each in trajectories)
    return tuple(chain.from_iterable(recorded))


def sampled_at(trajectory: TrainTrajectory) -> float:
    """The temperature of a trajectory's recorded logprobs: greedy ones are recorded at 1."""
    return trajectory.temperature or 1.0


def micro_batch_of(examples: Sequence[Example], version: int, *, is_untouched: bool) -> MicroBatch:
    """A micro-batch of examples of one temperature, for the step that trains `version`.

    `is_untouched`: the step has made no update yet, so the weights are still those of the version.
    """
    counts = torch.tensor([len(each.weights_P) for each in examples], dtype=torch.int64)
    staleness_P = version - _joined([drawn_by(each.trajectory) for each in examples]).long()
    trajectory_P = torch.repeat_interleave(counts)
    tokens = PolicyTokens(
        advantages_P=_joined([each.advantages_P for each in examples]),
        weights_P=_joined([each.weights_P for each in examples]),
        behaviour_P=torch.tensor(list(chain.from_iterable(each.trajectory.logprobs for each in examples))),
        trajectory_P=trajectory_P,
        staleness_P=staleness_P.clamp(0, MAX_STALENESS),
        is_comparable_P=_is_recomputed(examples) | ((staleness_P == 0) & is_untouched),
        recomputed_P=_recomputed(examples),
        reference_P=_joined_or_none([each.scores.reference_P for each in examples]),
        proximal_P=_joined_or_none([each.scores.proximal_P for each in examples]),
        returns_P=_joined_or_none([each.returns_P for each in examples]),
        old_values_P=_joined_or_none([each.scores.values_P for each in examples]),
    )
    return MicroBatch(sequences=sequences_of([each.trajectory for each in examples]), tokens=tokens)


def drawn_by(trajectory: TrainTrajectory) -> Tensor:
    """The version that drew each policy token of a trajectory (int64)."""
    if trajectory.versions:
        return torch.tensor(trajectory.versions)
    return torch.full((trajectory.num_policy_tokens,), trajectory.version)


def _is_recomputed(examples: Sequence[Example]) -> Tensor:
    flags = [each.scores.is_recomputed_P for each in examples]
    return _joined(
        [
            torch.zeros(len(each.weights_P), dtype=torch.bool) if own_P is None else own_P
            for each, own_P in zip(examples, flags, strict=True)
        ]
    ).bool()


def _recomputed(examples: Sequence[Example]) -> Tensor | None:
    """Recomputed logprobs; where they could not be computed the recorded ones, which is a ratio of one."""
    if all(each.scores.recomputed_P is None for each in examples):
        return None
    parts = [
        torch.tensor(each.trajectory.logprobs)
        if each.scores.recomputed_P is None
        else each.scores.recomputed_P
        for each in examples
    ]
    return _joined(parts)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0)


def _joined_or_none(parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known and len(known) == len(parts) else None


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a tensor on the device, through pinned memory: the host need not wait for it."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
