"""Every weight is trained, split over the ranks by torch's FSDP2.

A rank keeps its rows of every float32 master and of both moments. For a layer's turn the ranks put its
weights together in the serving dtype; its gradient is added up over ranks in float32 and split again. So the
forward pass uses what one device would: masters rounded once.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from dora_rl.trainer.policy import Policy


class ShardedWeights:
    """One rank's part of the weights. All ranks call the constructor and the methods that gather."""

    is_sharded = True

    def __init__(self, policy: Policy, serving_dtype: torch.dtype) -> None:
        # Inputs are not cast: rotations are float32 on purpose.
        precision = MixedPrecisionPolicy(
            param_dtype=serving_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        mesh = init_device_mesh(policy.decoder.device.type, (dist.get_world_size(),))
        for block in policy.decoder.layers:
            fully_shard(block, mesh=mesh, mp_policy=precision)
        if policy.value_head is not None:
            # A critic is float32 throughout.
            fully_shard(policy.value_head, mesh=mesh)
        # Also the outermost: what stays put together after a pass without gradient would be out of date
        # after the next update.
        fully_shard(policy, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
        self.policy = policy
        self.num_averaged = dist.get_world_size()
        self._serving_dtype = serving_dtype
        self._parameters = {name: _sharded(own) for name, own in policy.named_parameters()}
        self.masters = {name: own.to_local().detach() for name, own in self._parameters.items()}

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shapes of the masters put together from all ranks."""
        return {name: own.shape for name, own in self._parameters.items()}

    @property
    def decayed(self) -> frozenset[str]:
        """Names of the masters that weight decay applies to: the matrices."""
        return frozenset(name for name, own in self._parameters.items() if own.dim() > 1)

    def gradients(self) -> dict[str, Tensor]:
        """This rank's rows of the gradients, averaged over ranks."""
        grads = {name: own.grad for name, own in self._parameters.items()}
        return {name: _sharded(grad).to_local() for name, grad in grads.items() if grad is not None}

    def forget(self) -> None:
        """Drop all gradients."""
        for own in self._parameters.values():
            own.grad = None

    def refresh(self) -> None:
        """Do nothing: weights are rounded whenever they are gathered."""

    def served(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter of the decoder, gathered from all ranks and rounded, one after the other."""
        for name, own in self.policy.decoder.named_parameters():
            whole: Tensor = _sharded(own).full_tensor()
            yield name, whole.detach().to(self._serving_dtype)

    def whole(self, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Tensors gathered from all ranks, one after the other."""
        return ((name, self._like(name, local).full_tensor()) for name, local in tensors.items())

    @torch.no_grad()
    def restore(self, name: str, whole: Tensor, into: Tensor) -> None:
        """Copy this rank's rows of a whole tensor, which every rank has read."""
        own = self._parameters[name]
        part = distribute_tensor(whole.to(into.device), own.device_mesh, own.placements, src_data_rank=None)
        into.copy_(part.to_local())

    def _like(self, name: str, local: Tensor) -> DTensor:
        own = self._parameters[name]
        return DTensor.from_local(
            local, own.device_mesh, own.placements, run_check=False, shape=own.shape, stride=own.stride()
        )


def _sharded(tensor: Tensor) -> DTensor:
    assert isinstance(tensor, DTensor), f"a tensor of shape {tuple(tensor.shape)} is not sharded"
    return tensor
