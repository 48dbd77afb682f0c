"""The processes that train together, and the two things they say to each other outside the model."""

from typing import Literal, Protocol

import torch.distributed as dist
from torch import Tensor

How = Literal["sum", "max"]


class Ranks(Protocol):
    """Which of how many this process is. All are given the same batches and take their share of each."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many processes train together."""
        ...

    def reduce(self, values: Tensor, how: How) -> Tensor:
        """The sum or maximum over all ranks, the same on each; `values` may be changed."""
        ...


class Alone:
    """A trainer that is one process. Implements Ranks."""

    rank = 0
    size = 1

    def reduce(self, values: Tensor, how: How) -> Tensor:
        """The values themselves: there is no other rank."""
        return values


class Together:
    """The processes of torch's default group. Implements Ranks."""

    def __init__(self) -> None:
        assert dist.is_initialized(), "call torch.distributed.init_process_group first"
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def reduce(self, values: Tensor, how: How) -> Tensor:
        """The sum or maximum over all ranks, by one collective, in place."""
        dist.all_reduce(values, {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[how])
        return values
