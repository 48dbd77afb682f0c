"""The module that is trained: a decoder and, for algorithms with a critic, a value head.

One forward pass goes from packed sequences to the loss of their policy tokens, so that all parameters are
used inside it, whoever shards them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dora_rl.algorithms.critic import value_loss
from dora_rl.core.recipe.trainer_config import CriticConfig
from dora_rl.model.config import ModelConfig
from dora_rl.model.head_loss import head_loss
from dora_rl.model.language_model import LanguageModel, PassKind, hidden_of
from dora_rl.model.router_notes import RouterNotes
from dora_rl.trainer.loss_meters import LossMeters
from dora_rl.trainer.objective import Objective
from dora_rl.trainer.replay import replayed
from dora_rl.trainer.tensors import MicroBatch, PolicyTokens, Sequences


class ScoredTokens(NamedTuple):
    """Logprob and value of each policy token, without gradient."""

    logprobs_P: Tensor
    values_P: Tensor | None


class Policy(nn.Module):
    """The module that is trained: decoder, head and critic."""

    def __init__(
        self,
        decoder: LanguageModel,
        *,
        critic: CriticConfig | None = None,
        attention: PassKind = "auto",
        fused_head: bool | None = None,
        load_balance: float | None = None,
        replays_routers: bool = False,
    ) -> None:
        """Of a mixture of experts: `load_balance` is the coefficient of its load-balance loss, and with
        `replays_routers` tokens take the experts that were recorded of them."""
        super().__init__()
        self._replays_routers = replays_routers
        self._load_balance = load_balance
        self.decoder = decoder
        self.value_head = _value_head(decoder) if critic else None
        self._critic = critic
        self._fused_head = fused_head
        self._attention: PassKind = attention

    def forward(self, work: "LearningBatch | Sequences") -> Any:
        """The summed loss of a LearningBatch's tokens, or the logprobs and values of Sequences' tokens."""
        sequences = work.batch.sequences if isinstance(work, LearningBatch) else work
        packed = sequences.packed
        model = self.decoder.config
        routing = None
        if isinstance(model, ModelConfig) and model.experts:
            routing = RouterNotes(replayed(model, sequences) if self._replays_routers else {})
        hidden_TH = hidden_of(self.decoder, packed, self._attention, routing)
        picked: Callable[..., Tensor] = _Picked.apply
        hidden_PH = picked(hidden_TH, sequences.predicted_at_P)
        # Nobody reads those of the other tokens: gone before the head's logits are made.
        del hidden_TH

        if not isinstance(work, LearningBatch):
            logprobs = self.decoder.logprobs(hidden_PH, sequences.targets_P, sequences.temperature)
            values_P = None if self.value_head is None else self._values(hidden_PH)
            return ScoredTokens(logprobs.logprobs_T, values_P)

        tokens, objective, meters = work.batch.tokens, work.objective, work.meters
        if self.decoder.has_plain_head:
            loss = head_loss(
                hidden_PH,
                self.decoder.head_VH,
                sequences.targets_P,
                counts=sequences.counts,
                temperature=sequences.temperature,
                is_fused=self._fused_head,
                loss_of=lambda logprobs, entropy, rows: objective.loss(
                    tokens[rows], logprobs, entropy, meters
                ),
            )
        else:
            own = self.decoder.logprobs(hidden_PH, sequences.targets_P, sequences.temperature)
            loss = objective.loss(tokens, own.logprobs_T, own.entropy_T, meters)
        if routing is not None:
            loss = loss + self._balance_loss(routing, tokens, meters, sequences.experts)
        if self._critic is None:
            return loss
        return loss + self._value_loss(hidden_PH, tokens, meters, self._critic)

    def _balance_loss(
        self, routing: RouterNotes, tokens: PolicyTokens, meters: LossMeters, experts: tuple[bytes, ...]
    ) -> Tensor:
        """The load-balance loss of the micro-batch, by the weight that its policy tokens have."""
        imbalance = routing.imbalance()
        meters.add(tokens, {"imbalance": imbalance.detach().expand_as(tokens.weights_P)})
        if self._replays_routers and experts:
            is_given = torch.tensor([bool(each) for each in experts], device=tokens.weights_P.device)
            meters.add(tokens, {"replayed": is_given})
        return (self._load_balance or 0.0) * imbalance * tokens.weights_P.sum()

    def _value_loss(
        self, hidden_PH: Tensor, tokens: PolicyTokens, meters: LossMeters, critic: CriticConfig
    ) -> Tensor:
        values_P = self._values(hidden_PH if critic.trains_trunk else hidden_PH.detach())
        if tokens.returns_P is None:
            # Nothing to learn from, as in a rank's empty micro-batch: but all ranks' parameters take part.
            return 0.0 * values_P.sum()
        own_P = value_loss(values_P, tokens.returns_P, tokens.old_values_P, critic.value_clip)
        loss_P = critic.loss_weight * own_P * tokens.weights_P
        meters.add(tokens, {"value_loss": loss_P})
        return loss_P.sum()

    def _values(self, hidden_PH: Tensor) -> Tensor:
        assert self.value_head is not None, "there is no critic"
        values_P1: Tensor = self.value_head(hidden_PH.float())
        return values_P1.squeeze(-1)


class _Picked(torch.autograd.Function):
    """Rows at distinct indices. Their gradient is copied to its places, where indexing would add it up."""

    @staticmethod
    def forward(ctx: Any, hidden_TH: Tensor, places_P: Tensor) -> Tensor:
        ctx.save_for_backward(places_P)
        ctx.num_rows = len(hidden_TH)
        return hidden_TH.index_select(0, places_P)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PH: Tensor) -> tuple[Tensor, None]:
        (places_P,) = ctx.saved_tensors
        grad_TH = grad_PH.new_zeros(ctx.num_rows, grad_PH.shape[1])
        return grad_TH.index_copy_(0, places_P, grad_PH), None


class LearningBatch(NamedTuple):
    """A micro-batch, the loss to compute of it, and where its figures are summed."""

    batch: MicroBatch
    objective: Objective
    meters: LossMeters


def _value_head(decoder: LanguageModel) -> nn.Linear:
    """A value head of zeros: a fresh critic says nothing, rather than noise."""
    head = nn.Linear(decoder.config.hidden_size, 1, device=decoder.device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
