"""The GPU's passes over logits, run by Triton's interpreter, are the dense definition.

In a process of its own: whether kernels are interpreted is decided when they are defined.
"""

import importlib.util
import os
import subprocess
import sys

import pytest

CHECK = """
import torch
from torch import Tensor
from dora_rl.model import vocabulary
from dora_rl.model.head_loss import head_loss
from dora_rl.model.logprobs import token_logprobs
from dora_rl.model.logprobs_half import HalfPrecisionLogprobs

torch.set_num_threads(1)
vocabulary._BLOCK_WORDS = 32
generator = torch.Generator().manual_seed(0)
hidden = torch.randn(11, 16, generator=generator)
head = 2 * torch.randn(75, 16, generator=generator)
targets = torch.randint(0, 75, (11,), generator=generator)
old, bonus = torch.randn(2, 11, generator=generator)

def loss_of(logprobs: Tensor, entropy: Tensor, rows: slice) -> Tensor:
    ratio = (logprobs - logprobs.detach() - 0.1 * old[rows]).exp()
    surrogate = torch.min(ratio * old[rows], ratio.clamp(0.9, 1.1) * old[rows])
    return (surrogate + 0.3 * bonus[rows] * entropy).sum()

def gradients(compute):
    inputs = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    loss = compute(*inputs)
    return [loss.detach(), *torch.autograd.grad(2 * loss, inputs)]

def reference(h, w):
    return loss_of(*token_logprobs(h, w, targets, temperature=0.7), slice(0, 11))

def again(h, w):
    return loss_of(*HalfPrecisionLogprobs.apply(h, w, targets, 0.7), slice(0, 11))

def fused(h, w):
    return head_loss(
        h, w, targets, counts=[3, 0, 4, 1, 3], loss_of=loss_of, temperature=0.7, is_fused=True, block_tokens=5
    )

expected = gradients(reference)
for compute in (again, fused):
    for ours, theirs in zip(gradients(compute), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
extreme = 3000 * head
for values in HalfPrecisionLogprobs.apply(hidden, extreme, targets, 1.0):
    assert values.isfinite().all()
print("checked")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_interpreted_kernels_give_the_reference_values_and_gradients() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout == "checked\n", done.stderr
