"""Kernels that start while the one before them still runs (programmatic dependent launch, from Hopper on).

Such a kernel may at once read what no kernel of the graph writes, its weights above all; before it touches
anything else it waits for the one before it to be over, which in turn waited for its own. A kernel that does
not take part is simply waited for.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def let_next_start(OVERLAPS: tl.constexpr):
    """Allow the next kernel to begin."""
    if OVERLAPS:
        gdc_launch_dependents()


@triton.jit
def await_previous(OVERLAPS: tl.constexpr):
    """Wait until everything the kernels before this one wrote is there."""
    if OVERLAPS:
        gdc_wait()


def overlaps(tensor: Tensor) -> bool:
    """Whether kernels on the tensor's device can overlap in this way."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (9, 0)
