"""The gate of an MLP: `silu(gate) * up`, rounded where the decoder rounds."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def gate(gate_up, up):
    """Silu in float32, rounded, times up."""
    wide = gate_up.to(tl.float32)
    opened = (wide / (1.0 + tl.exp(-wide))).to(up.dtype)
    return (opened.to(tl.float32) * up.to(tl.float32)).to(up.dtype)


@triton.jit
def _gated(gate_up, out, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inner
    first = tl.load(gate_up + row * 2 * inner + columns, mask=inside)
    second = tl.load(gate_up + row * 2 * inner + inner + columns, mask=inside)
    tl.store(out + row * inner + columns, gate(first, second), mask=inside)


def gated(gate_up_TI: Tensor, out_TI: Tensor) -> None:
    """`silu(gate) * up` of a fused projection."""
    num_tokens, inner = out_TI.shape
    block = min(1024, triton.next_power_of_2(inner))
    _gated[(num_tokens, triton.cdiv(inner, block))](gate_up_TI, out_TI, inner, BLOCK=block, num_warps=4)
