"""The float32 weights that are trained, and the serving-dtype weights the forward pass uses.

A published version is the serving-dtype weights. Training rounds a float32 master to them after every update,
adds up gradients in float32 whatever their own dtype, and hands both to the optimizer as plain tensors.
`sharded` and `lora` are other ways to answer the same questions.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from dora_rl.trainer.policy import Policy


class Weights(Protocol):
    """The masters, gradients and served tensors of a model. All tensors are this rank's part."""

    policy: Policy

    @property
    def masters(self) -> dict[str, Tensor]:
        """Float32 weights by name, updated in place."""
        ...

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shapes of the masters, put together from all ranks."""
        ...

    @property
    def decayed(self) -> frozenset[str]:
        """Names of the masters that weight decay applies to."""
        ...

    @property
    def is_sharded(self) -> bool:
        """Whether each rank's masters are a part of the whole."""
        ...

    @property
    def num_averaged(self) -> int:
        """Over how many ranks gradients are averaged, where their sum is wanted."""
        ...

    def gradients(self) -> dict[str, Tensor]:
        """Float32 gradients over all micro-batches and ranks since the last `forget`; may be none."""
        ...

    def forget(self) -> None:
        """Drop all gradients."""
        ...

    def refresh(self) -> None:
        """Make the forward pass use what the masters are now."""
        ...

    def served(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter of the decoder, whole, in the serving dtype, under the Decoder's own name."""
        ...

    def whole(self, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Tensors shaped like the masters, each put together from all ranks when it is asked for."""
        ...

    def restore(self, name: str, whole: Tensor, into: Tensor) -> None:
        """Copy this rank's part of a whole tensor into one shaped like the master of that name."""
        ...


class FullWeights:
    """Weights that are all trained, on one device. Implements Weights."""

    is_sharded = False
    num_averaged = 1

    def __init__(self, policy: Policy, serving_dtype: torch.dtype) -> None:
        self.policy = policy
        # Detached, a parameter is a tensor of the same memory: where the serving dtype is float32, it is its
        # own master. Rounding replaces the memory of the others, so theirs is kept as the master's.
        self.masters = {name: used.detach() for name, used in policy.named_parameters()}
        assert all(master.dtype == torch.float32 for master in self.masters.values()), "masters are float32"
        policy.decoder.to(serving_dtype)
        self._forward = dict(policy.named_parameters())
        self._sums: dict[str, Tensor] = {}
        for name, used in self._forward.items():
            used.register_post_accumulate_grad_hook(self._absorber(name))

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shapes of the masters."""
        return {name: master.shape for name, master in self.masters.items()}

    @property
    def decayed(self) -> frozenset[str]:
        """Names of the masters that weight decay applies to: the matrices."""
        return frozenset(name for name, master in self.masters.items() if master.dim() > 1)

    def gradients(self) -> dict[str, Tensor]:
        """Gradients of every parameter that took part."""
        return self._sums

    def forget(self) -> None:
        """Drop all gradients."""
        self._sums = {}

    @torch.no_grad()
    def refresh(self) -> None:
        """Round masters to the serving dtype."""
        pairs = [(self._forward[name], master) for name, master in self.masters.items()]
        rounded = [(used, master) for used, master in pairs if used.dtype != master.dtype]
        if rounded:
            torch._foreach_copy_([used for used, _ in rounded], [master for _, master in rounded])

    def served(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors the forward pass uses, in the serving dtype."""
        for name, used in self.policy.decoder.named_parameters():
            yield name, used.detach()

    def whole(self, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The tensors themselves: there is one rank."""
        return ((name, tensor.detach()) for name, tensor in tensors.items())

    @torch.no_grad()
    def restore(self, name: str, whole: Tensor, into: Tensor) -> None:
        """Copy a whole tensor into one shaped like the master of that name."""
        into.copy_(whole)

    def _absorber(self, name: str) -> Callable[[Tensor], None]:
        """A hook that moves a parameter's gradient into its float32 sum as soon as it is there."""

        def absorb(used: Tensor) -> None:
            grad, used.grad = used.grad, None
            assert grad is not None, "another trainer took it: a decoder belongs to one trainer"
            if name in self._sums:
                self._sums[name].add_(grad)
            else:
                self._sums[name] = grad.float()

        return absorb
