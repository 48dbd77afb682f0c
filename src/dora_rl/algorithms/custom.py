"""A loss or an advantage of the user's own: imported by name, read, tried out, and called with what it names.

    def my_loss(logprobs, behaviour_logprobs, advantages, *, clip=0.2):
        ratio = (logprobs - behaviour_logprobs).exp()
        held = ratio.clamp(1 - clip, 1 + clip)
        return -torch.minimum(ratio * advantages, held * advantages), {"ratio": ratio}

    def my_advantage(rewards):
        return rewards - rewards.mean()

A loss sees packed tokens of whole trajectories, any number of them, and returns one number a token: so it
does not depend on how a batch is cut into micro-batches or over ranks. An advantage sees the rewards of one
group and returns one number a member. What either needs beyond that it says by naming a parameter; nothing is
declared twice. The trial finds at the start of a run what would otherwise be found after its first batch.
"""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dora_rl.algorithms.tokens import Loss, LossTerms, LossTokens, nowhere, ratio
from dora_rl.core.environment_values import with_environment
from dora_rl.core.errors import UserError
from dora_rl.core.keywords import Keywords, keywords_of
from dora_rl.core.named import Objects, load_named
from dora_rl.core.recipe.algorithm import CustomAdvantageConfig
from dora_rl.core.recipe.loss_configs import CustomLossConfig

LOSS_KEYWORDS = (
    "logprobs",
    "behaviour_logprobs",
    "proximal_logprobs",
    "advantages",
    "mask",
    "trajectory",
    "num_trajectories",
)
"""Parameters that a loss of the user's own may name: see docs/extending.md."""

ADVANTAGE_KEYWORDS = ("rewards", "lengths", "batch_rewards")
"""Parameters that an advantage of the user's own may name: see docs/extending.md."""


# --- losses -------------------------------------------------------------------------------------


def load_loss(config: CustomLossConfig, objects: Objects | None = None) -> Loss:
    """The user's loss, tried out on a few tokens; a UserError names the function and what is wrong."""
    what = f"the loss '{config.function}'"
    call = _callable(config.function, what, objects)
    keywords = keywords_of(call, what, offered=LOSS_KEYWORDS, options=config.options)
    _check_required(keywords, what, LOSS_KEYWORDS)
    options = with_environment(config.options, what)
    function = _UserLoss(what=what, call=call, keywords=keywords, options=options)
    tried = function(_trial_tokens())
    _check_trial(what, tried)
    metrics = tuple(tried.metrics)
    return Loss(
        name=what,
        function=replace(function, metrics=metrics),
        needs_proximal="proximal_logprobs" in keywords.named,
        metrics=metrics,
        is_users=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _UserLoss:
    """Called with tensors it names; what it returns is checked for form, never read from the device."""

    what: str
    call: Callable[..., Any]
    keywords: Keywords
    options: Mapping[str, Any]
    metrics: tuple[str, ...] | None = None
    """The names of metrics the loss reported when it was tried out; None while it is."""

    def __call__(self, tokens: LossTokens) -> LossTerms:
        if not len(tokens.logprobs_T):
            # A rank's empty micro-batch: nothing to ask of a function that may take a maximum.
            return self._terms(tokens, 0.0 * tokens.logprobs_T, {})
        returned = _called(self.what, self.call, self.keywords.chosen({**_offered(tokens), **self.options}))
        loss_T, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
        if not isinstance(loss_T, Tensor) or loss_T.shape != tokens.logprobs_T.shape:
            raise UserError(
                f"{self.what} returned {_form(loss_T)} for {len(tokens.logprobs_T)} tokens",
                hint="return one number a token, not their mean: aggregation is the recipe's; "
                "metrics go beside it: `return loss, {'ratio': ratio}`",
            )
        return self._terms(tokens, loss_T, metrics)

    def _terms(self, tokens: LossTokens, loss_T: Tensor, metrics: Any) -> LossTerms:
        if not isinstance(metrics, Mapping):
            raise UserError(f"{self.what} returned {_form(metrics)} as its metrics", hint="return a dict")
        found = {str(name): self._metric(str(name), own, loss_T) for name, own in metrics.items()}
        own_ratio_T = found.pop("ratio", None)
        # Before the check: these three take the place of what is otherwise computed for a loss.
        low_T, high_T = found.pop("clipped_low", None), found.pop("clipped_high", None)
        if self.metrics is not None and len(loss_T) and tuple(found) != self.metrics:
            raise UserError(
                f"{self.what} returned the metrics {list(found)}, and {list(self.metrics)} at first",
                hint="return the same names in every call: ranks and micro-batches are added up",
            )
        if own_ratio_T is None:
            own_ratio_T = ratio(tokens.logprobs_T.detach(), tokens.behaviour_logprobs_T)
        return LossTerms(
            loss_T=loss_T,
            ratio_T=own_ratio_T,
            is_clipped_low_T=nowhere(loss_T) if low_T is None else low_T,
            is_clipped_high_T=nowhere(loss_T) if high_T is None else high_T,
            metrics=found,
        )

    def _metric(self, name: str, value: Any, loss_T: Tensor) -> Tensor:
        """A metric of the loss as one number a token; a single one counts for all of them."""
        value_T = torch.as_tensor(value, device=loss_T.device).detach()
        if value_T.shape not in (loss_T.shape, torch.Size()):
            raise UserError(
                f"{self.what} returned {_form(value_T)} as its metric '{name}' for {len(loss_T)} tokens",
                hint="give one number a token, or one for all",
            )
        return value_T.expand(loss_T.shape)


def _offered(tokens: LossTokens) -> dict[str, Any]:
    return {
        "logprobs": tokens.logprobs_T,
        "behaviour_logprobs": tokens.behaviour_logprobs_T,
        "proximal_logprobs": tokens.proximal_logprobs_T,
        "advantages": tokens.advantages_T,
        "mask": torch.ones_like(tokens.trajectory_T, dtype=torch.bool),
        "trajectory": tokens.trajectory_T,
        "num_trajectories": tokens.num_trajectories,
    }


def _trial_tokens() -> LossTokens:
    """Tokens of three trajectories: ratios of 1, near and far from it, advantages of each sign and none."""
    logprobs_T = torch.tensor([-0.5, -1.0, -2.0, -0.1, -3.0, -1.5, -8.0], requires_grad=True)
    return LossTokens(
        logprobs_T=logprobs_T,
        behaviour_logprobs_T=torch.tensor([-0.5, -1.1, -1.0, -0.3, -3.0, -4.0, -2.0]),
        advantages_T=torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, 0.0, 0.0]),
        trajectory_T=torch.tensor([0, 0, 0, 1, 1, 2, 2]),
        num_trajectories=3,
        proximal_logprobs_T=torch.tensor([-0.5, -1.0, -1.5, -0.2, -3.0, -2.0, -4.0]),
    )


def _check_trial(what: str, terms: LossTerms) -> None:
    _check_finite(what, terms.loss_T, "for tokens of ordinary logprobs")
    if not terms.loss_T.requires_grad:
        raise UserError(
            f"{what} does not depend on 'logprobs': nothing would be learned",
            hint="do not detach all of them",
        )


# --- advantages ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAdvantage:
    """An advantage of the user's own, called for one group after the other."""

    what: str
    call: Callable[..., Any]
    keywords: Keywords
    options: Mapping[str, Any]

    @property
    def whole_batch_reason(self) -> str | None:
        """Why no advantage is known before the batch is complete; None where a group is enough."""
        if "batch_rewards" not in self.keywords.named:
            return None
        return f"{self.what} names 'batch_rewards': no advantage is known before the batch is complete"

    def __call__(self, rewards_N: Tensor, group_N: Tensor, lengths_N: Tensor) -> Tensor:
        """One advantage for each trajectory, float32; members of a group are called together, in order."""
        advantages_N = torch.zeros(len(rewards_N))
        for group in group_N.unique():
            own = (group_N == group).nonzero().flatten()
            offered = {"rewards": rewards_N[own], "lengths": lengths_N[own], "batch_rewards": rewards_N}
            advantages_N[own] = self._of_group(offered)
        return advantages_N

    def _of_group(self, offered: dict[str, Any]) -> Tensor:
        returned = _called(self.what, self.call, self.keywords.chosen({**offered, **self.options}))
        rewards_G: Tensor = offered["rewards"]
        try:
            advantages_G = torch.as_tensor(returned, dtype=torch.float64).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{self.what} returned {_form(returned)}", hint="return a tensor") from error
        if advantages_G.shape != rewards_G.shape:
            raise UserError(
                f"{self.what} returned {_form(advantages_G)} for a group of {len(rewards_G)}",
                hint="return one number a member",
            )
        _check_finite(self.what, advantages_G, f"for the rewards {rewards_G.tolist()}")
        return advantages_G.float()


def load_advantage(config: CustomAdvantageConfig, objects: Objects | None = None) -> UserAdvantage:
    """The user's advantage, tried out on a few groups; a UserError names the function and what is wrong."""
    what = f"the advantage '{config.function}'"
    call = _callable(config.function, what, objects)
    keywords = keywords_of(call, what, offered=ADVANTAGE_KEYWORDS, options=config.options)
    _check_required(keywords, what, ADVANTAGE_KEYWORDS)
    options = with_environment(config.options, what)
    advantage = UserAdvantage(what=what, call=call, keywords=keywords, options=options)
    # Also a group whose rewards are all equal: dividing by their deviation is what goes wrong most often.
    rewards_N = torch.tensor([0.0, 1.0, 0.5, 1.0, 1.0, 1.0], dtype=torch.float64)
    advantage(rewards_N, torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([3, 1, 4, 1, 5, 9]))
    return advantage


# --- both ---------------------------------------------------------------------------------------


def _callable(name: str, what: str, objects: Objects | None) -> Callable[..., Any]:
    found = load_named(name, objects)
    if not callable(found):
        raise UserError(f"{what} is not a function", hint="name a function or a callable")
    call: Callable[..., Any] = found
    return call


def _check_required(keywords: Keywords, what: str, offered: tuple[str, ...]) -> None:
    if keywords.required:
        raise UserError(
            f"{what} cannot be called without '{keywords.required[0]}'",
            hint=f"it is given {', '.join(offered)}; anything else belongs into its 'options'",
        )


def _called(what: str, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return call(**arguments)
    except Exception as error:  # whatever the user's function raises
        told = f"{type(error).__name__}: {error}"
        raise UserError(f"{what} failed: {told}", hint=_mend(error)) from error


def _mend(error: Exception) -> str | None:
    """A hint where in the user's own file it went wrong, and not somewhere within torch."""
    own = traceback.extract_tb(error.__traceback__)[1:]
    lines = [frame.lineno for frame in own if frame.filename == own[0].filename]
    return f"mend {own[0].filename}, line {lines[-1]}" if lines else None


def _check_finite(what: str, values: Tensor, when: str) -> None:
    bad = values[~torch.isfinite(values)]
    if len(bad):
        raise UserError(
            f"{what} returned {bad[0].item()} {when}", hint="guard what it divides by, and what it raises to"
        )


def _form(value: Any) -> str:
    """The form of what a function returned, in words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" if value.ndim else "a single number"
    return f"a {type(value).__name__}"
