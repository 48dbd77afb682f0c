"""Tokens to rows of the embedding; a token that is still a secret of the device is looked up there."""

import triton
import triton.language as tl
from torch import Tensor

FROM_SLOT = -1
"""Token id that stands for the token drawn last in the slot."""


@triton.jit
def _embed(tokens, slots, drawn, table, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    token = tl.load(tokens + row)
    if token < 0:
        token = tl.load(drawn + tl.load(slots + row))
    columns = tl.arange(0, BLOCK)
    values = tl.load(table + token.to(tl.int64) * width + columns, mask=columns < width)
    tl.store(out + row * width + columns, values, mask=columns < width)


def embed(tokens_T: Tensor, slots_T: Tensor, drawn_S: Tensor, table_VH: Tensor, out_TH: Tensor) -> None:
    """Write the row of the embedding for each token."""
    num_tokens, width = out_TH.shape
    block = triton.next_power_of_2(width)
    _embed[(num_tokens,)](tokens_T, slots_T, drawn_S, table_VH, out_TH, width, BLOCK=block)
