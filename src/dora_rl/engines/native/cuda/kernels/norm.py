"""RMS norm, after adding to the residual stream what the last part of a layer came up with.

Rounds where the decoder rounds: the sum once, the norm once.
"""

import triton
import triton.language as tl
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.overlap import await_previous, let_next_start, overlaps


@triton.jit
def _norm(
    residual,
    change,
    shares,
    weight,
    out,
    width,
    eps,
    NUM_PARTS: tl.constexpr,
    HAS_SHARES: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_start(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    await_previous(OVERLAPS)
    values = tl.load(residual + row * width + columns, mask=inside, other=0.0)
    if NUM_PARTS > 0:
        added = tl.zeros([BLOCK], dtype=tl.float32)
        for part in tl.static_range(NUM_PARTS):
            place = row * NUM_PARTS + part if HAS_SHARES else part * tl.num_programs(0) + row
            own = tl.load(change + place * width + columns, mask=inside, other=0.0).to(tl.float32)
            added += own * tl.load(shares + place) if HAS_SHARES else own
        added = added.to(values.dtype).to(tl.float32)
        values = (values.to(tl.float32) + added).to(values.dtype)
        tl.store(residual + row * width + columns, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    tl.store(out + row * width + columns, (wide * scale * weights).to(values.dtype), mask=inside)


def add_norm(
    residual_TH: Tensor,
    change: Tensor | None,
    weight_H: Tensor,
    eps: float,
    out_TH: Tensor,
    *,
    shares_TA: Tensor | None = None,
) -> None:
    """Add the change, or its parts `[parts, tokens, width]`, to the residual in place; write the norm of the
    sum.

    With shares the change is rows `[tokens, active, width]`, weighted by their shares.
    """
    num_tokens, width = out_TH.shape
    block = triton.next_power_of_2(width)
    does_overlap = overlaps(out_TH)
    num_parts = 0 if change is None else len(change) if change.dim() == 3 else 1
    if shares_TA is not None:
        num_parts = shares_TA.shape[1]
    _norm[(num_tokens,)](
        residual_TH,
        residual_TH if change is None else change,
        residual_TH if shares_TA is None else shares_TA,
        weight_H,
        out_TH,
        width,
        eps,
        NUM_PARTS=num_parts,
        HAS_SHARES=shares_TA is not None,
        BLOCK=block,
        OVERLAPS=does_overlap,
        launch_pdl=does_overlap,
        num_warps=min(8, max(1, block // 256)),
    )
