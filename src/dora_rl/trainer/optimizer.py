"""AdamW on float32 masters: one update from summed gradients, or none where they are not finite."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from dora_rl.core.recipe.trainer_config import OptimizerConfig
from dora_rl.trainer.ranks import Ranks
from dora_rl.trainer.schedule import share_of_peak
from dora_rl.trainer.trained_weights import Weights

MOMENTS = ("exp_avg", "exp_avg_sq")


class Update(NamedTuple):
    """Metrics of one optimizer update."""

    grad_norm: float
    """Global norm of the gradient, before clipping."""
    learning_rate: float
    is_skipped: bool


class Optimizer:
    """Moments, schedule and clipping. The arithmetic is torch's fused AdamW."""

    def __init__(self, weights: Weights, config: OptimizerConfig, ranks: Ranks) -> None:
        self._weights = weights
        self._config = config
        self._ranks = ranks
        self.num_updates = 0
        self.num_skipped = 0
        groups = [
            {"params": [], "weight_decay": config.weight_decay},
            {"params": [], "weight_decay": 0.0},
        ]
        for name, master in weights.masters.items():
            groups[name not in weights.decayed]["params"].append(master)  # type: ignore[attr-defined]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=0.0,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return self._config.learning_rate * share_of_peak(
            self._config.learning_rate_schedule, self.num_updates
        )

    @torch.no_grad()
    def update(self, scale: float, *, is_loss_finite: bool = True) -> Update:
        """Move the masters along the summed gradients times `scale`, clipped by their global norm.

        Where the loss or the norm is no number, nothing moves: the update is skipped and counted.
        """
        gradients = self._weights.gradients()
        scale *= self._weights.num_averaged
        norm = scale * self._norm(list(gradients.values()))
        learning_rate = self.learning_rate
        if not (is_loss_finite and math.isfinite(norm)):
            self.num_skipped += 1
            self._weights.forget()
            return Update(norm, learning_rate, is_skipped=True)

        limit = self._config.max_grad_norm
        factor = scale * (1.0 if limit is None or norm <= limit else limit / norm)
        if gradients and factor != 1:
            torch._foreach_mul_(list(gradients.values()), factor)
        for name, master in self._weights.masters.items():
            master.grad = gradients.get(name)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self.num_updates += 1
        self._weights.forget()
        self._weights.refresh()
        return Update(norm, learning_rate, is_skipped=False)

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """Both moments of AdamW for each master that has been updated, by name."""
        state = self._adamw.state
        masters = self._weights.masters
        return {
            moment: {name: state[master][moment] for name, master in masters.items() if state.get(master)}
            for moment in MOMENTS
        }

    def steps(self) -> dict[str, int]:
        """How often each master has been updated, by name."""
        state = self._adamw.state
        named = self._weights.masters.items()
        return {name: int(state[master]["step"]) for name, master in named if state.get(master)}

    @torch.no_grad()
    def restore(self, steps: Mapping[str, int], moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue from moments read from a checkpoint, whole on every rank."""
        for name, count in steps.items():
            master = self._weights.masters[name]
            state = self._adamw.state[master]
            state["step"] = torch.tensor(float(count), device=master.device)
            for moment in MOMENTS:
                state[moment] = torch.zeros_like(master)
                self._weights.restore(name, moments[moment][name], state[moment])

    def _norm(self, gradients: list[Tensor]) -> float:
        """The global norm of the gradients; waits for the device."""
        device = next(iter(self._weights.masters.values())).device
        squares = torch.zeros((), dtype=torch.float64, device=device)
        if gradients:
            squares += torch.stack(torch._foreach_norm(gradients)).double().square().sum()
        if self._weights.is_sharded:
            squares = self._ranks.reduce(squares, "sum")
        return math.sqrt(value) if math.isfinite(value := squares.item()) else math.nan
