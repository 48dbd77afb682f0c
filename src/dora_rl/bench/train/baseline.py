"""The same work as many run it: transformers, SDPA, sequences sorted by length and padded to a token budget.

Everything is in its favour that a short script would have: bfloat16 weights without float32 masters, fused
AdamW, sorted sequences, no entropy. Logits of a micro-batch are held whole, as the model returns them. The
weights and the loss are those of our own run, so that the two losses can be compared.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from dora_rl.algorithms.advantages import outcome_advantages
from dora_rl.bench.device import synchronised_s
from dora_rl.bench.train.phase_clock import PhaseClock, forget_peak, peak_bytes
from dora_rl.bench.train.timed_steps import TrainTiming, random_decoder
from dora_rl.bench.train.train_batches import batch_of, train_flops
from dora_rl.core.recipe.algorithm import AdvantageConfig
from dora_rl.model.config import ModelConfig
from dora_rl.model.hub_config import to_published
from dora_rl.model.save import to_published_tensors
from dora_rl.trainer.train_batch import TrainBatch, TrainTrajectory

ScoredRow = tuple[TrainTrajectory, float]


def measure_baseline(
    shape: str, model: ModelConfig, lengths: list[int], device: torch.device, *, budget: int, steps: int
) -> TrainTiming:
    """Measure the mean of `steps` train steps with transformers after one that warms up."""
    theirs = _model(model, device)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-6, weight_decay=0.0, fused=True)
    rows = _rows(batch_of(lengths, model.vocab_size))
    clock = PhaseClock(device)
    loss = _step(theirs, optimizer, rows, budget, clock)
    clock.phases()
    forget_peak(device)
    started_s = synchronised_s(device)
    for _ in range(steps):
        _step(theirs, optimizer, rows, budget, clock)
    clock.mark("end")
    step_s = (synchronised_s(device) - started_s) / steps
    return TrainTiming(
        shape=shape,
        name=f"transformers, SDPA, {budget} tokens",
        tokens_per_s=sum(lengths) / step_s,
        flops_per_s=train_flops(model, lengths) / step_s,
        step_s=step_s,
        peak_bytes=peak_bytes(device),
        phases_s={phase: seconds / steps for phase, seconds in clock.phases().items()},
        loss=float(loss),
    )


def _model(model: ModelConfig, device: torch.device) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    published = to_published(model)
    published.pop("architectures", None)
    config = AutoConfig.for_model(**published)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        theirs = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    module: torch.nn.Module = theirs.train()
    ours = dict(to_published_tensors(random_decoder(model, device)))
    unexpected = module.load_state_dict(ours, strict=False).unexpected_keys
    assert not unexpected, f"transformers has no {unexpected[:3]}"
    return module


def _rows(batch: TrainBatch) -> list[ScoredRow]:
    members = [(place, member) for place, group in enumerate(batch.groups) for member in group.members]
    rewards_N = torch.tensor([member.reward for _, member in members])
    group_N = torch.tensor([place for place, _ in members])
    advantages = outcome_advantages(rewards_N, group_N, AdvantageConfig()).tolist()
    rows = [(member, advantage) for (_, member), advantage in zip(members, advantages, strict=True)]
    return sorted(rows, key=lambda row: row[0].num_tokens)


def _padded(rows: list[ScoredRow], budget: int) -> Iterator[list[ScoredRow]]:
    """Batches of neighbours in length, as many as the budget holds when padded to the longest."""
    chosen: list[ScoredRow] = []
    for row in rows:
        if chosen and row[0].num_tokens * (len(chosen) + 1) > budget:
            yield chosen
            chosen = []
        chosen.append(row)
    yield chosen


def _step(
    theirs: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    rows: list[ScoredRow],
    budget: int,
    clock: PhaseClock,
) -> Tensor:
    device = next(theirs.parameters()).device
    num_tokens = sum(member.num_policy_tokens for member, _ in rows)
    total = torch.zeros((), device=device)
    for chosen in _padded(rows, budget):
        clock.mark("forward")
        loss = _loss(theirs, chosen, device) / num_tokens
        clock.mark("backward")
        loss.backward()
        total += loss.detach()
    clock.mark("optimizer")
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def _loss(theirs: torch.nn.Module, rows: list[ScoredRow], device: torch.device) -> Tensor:
    """PPO of a padded batch, summed over its policy tokens."""
    longest = max(member.num_tokens for member, _ in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros(len(rows), longest, dtype=torch.int64)
    behaviour = torch.zeros(len(rows), longest)
    for place, (member, _) in enumerate(rows):
        sequence = (*member.prompt, *member.response)
        tokens[place, : len(sequence)] = torch.tensor(sequence)
        mask[place, : len(sequence)] = 1
        behaviour[place, len(member.prompt) : len(sequence)] = torch.tensor(member.logprobs)
    tokens, mask, behaviour = (values.to(device) for values in (tokens, mask, behaviour))
    advantages = torch.tensor([advantage for _, advantage in rows], device=device)[:, None]
    logits = theirs(input_ids=tokens, attention_mask=mask, use_cache=False).logits[:, :-1]
    logprobs = logits.float().log_softmax(dim=-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    ratio = (logprobs - behaviour[:, 1:]).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -(surrogate * mask[:, 1:]).sum()
