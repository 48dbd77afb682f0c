"""What frozen weights say about trajectories: logprobs and values of their policy tokens."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dora_rl.trainer.microbatch import packed_into
from dora_rl.trainer.policy import Policy
from dora_rl.trainer.ranks import Ranks
from dora_rl.trainer.tensors import on_device, sampled_at, sequences_of
from dora_rl.trainer.train_batch import TrainTrajectory


@torch.no_grad()
def scored(
    policy: Policy,
    trajectories: Sequence[TrainTrajectory],
    *,
    max_tokens: int,
    ranks: Ranks,
    device: torch.device,
) -> tuple[list[Tensor], list[Tensor] | None]:
    """Logprobs, and values where there is a critic, of each trajectory's policy tokens, on the CPU.

    Ranks share the work and all learn the result: each fills in its own trajectories, and the rest are zero.
    """
    counts = [each.num_policy_tokens for each in trajectories]
    places = torch.arange(sum(counts)).split(counts)
    results = torch.zeros(2, sum(counts), device=device)
    for members in own_batches(trajectories, max_tokens, ranks):
        found = policy(sequences_of([trajectories[i] for i in members]).to(device))
        rows_P = on_device(torch.cat([torch.arange(0), *(places[i] for i in members)]), device)
        results[0].index_copy_(0, rows_P, found.logprobs_P)
        if found.values_P is not None:
            results[1].index_copy_(0, rows_P, found.values_P)
    logprobs, values = ranks.reduce(results, "sum").cpu()
    has_values = policy.value_head is not None
    return list(logprobs.split(counts)), list(values.split(counts)) if has_values else None


def own_batches(
    trajectories: Sequence[TrainTrajectory], max_tokens: int, ranks: Ranks
) -> Iterator[list[int]]:
    """This rank's micro-batches, as indices; every rank has as many."""
    return own_share(
        [each.num_tokens for each in trajectories],
        [sampled_at(each) for each in trajectories],
        max_tokens,
        ranks,
    )


def own_share(
    lengths: Sequence[int], temperatures: Sequence[float], max_tokens: int, ranks: Ranks
) -> Iterator[list[int]]:
    """This rank's micro-batches, of one temperature each; some empty where ranks outnumber trajectories."""
    for temperature in sorted(set(temperatures)):
        alike = [i for i, own in enumerate(temperatures) if own == temperature]
        bins = packed_into([lengths[i] for i in alike], max_tokens, multiple=ranks.size)
        for members in bins[ranks.rank :: ranks.size]:
            yield [alike[i] for i in members]
