"""Products of many rows, by the library.

It gives a matrix with few outputs to few processors. So where rows are not many either, the inputs are split
and the parts computed side by side, as one batched product; they are left as they are, for the norm that
follows to add up.
"""

import torch
from torch import Tensor

from dora_rl.engines.native.cuda.tiles import choices, split_key

MAX_PARTS = 4
"""Most parts that inputs are split into."""
MAX_SPLIT_ROWS = 384
"""Most rows whose inputs are split."""


def library_linear(inputs_TI: Tensor, weight_OI: Tensor, out: Tensor, bias_O: Tensor | None = None) -> None:
    """`inputs @ weight.T + bias` to `out [rows, outputs]`, or its parts to `out [parts, rows, outputs]`."""
    if out.dim() == 3:
        assert bias_O is None, "parts have no bias"
        _split_linear(inputs_TI, weight_OI, out)
    elif bias_O is None:
        torch.mm(inputs_TI, weight_OI.T, out=out)
    else:
        torch.addmm(bias_O, inputs_TI, weight_OI.T, out=out)


def _split_linear(inputs_TI: Tensor, weight_OI: Tensor, out_PTO: Tensor) -> None:
    num_parts = len(out_PTO)
    inputs_PTJ = inputs_TI.unflatten(1, (num_parts, -1)).transpose(0, 1)
    weight_PJO = weight_OI.unflatten(1, (num_parts, -1)).permute(1, 2, 0)
    torch.bmm(inputs_PTJ, weight_PJO, out=out_PTO)


def parts_for(num_rows: int, num_outputs: int, num_inputs: int) -> int:
    """Into how many parts the inputs of a product are split: as tuning chose for the shape, else as usual."""
    if num_rows > MAX_SPLIT_ROWS:
        return 1
    chosen = choices().splits.get(split_key(num_rows, num_outputs, num_inputs))
    return chosen or usual_parts(num_rows, num_outputs, num_inputs)


def usual_parts(num_rows: int, num_outputs: int, num_inputs: int) -> int:
    """The number of parts that measured best on an H200, norm included."""
    most = min(MAX_PARTS if num_rows <= 256 else 2, 8192 // num_outputs)
    return next((parts for parts in (4, 2) if parts <= most and splits_evenly(num_inputs, parts)), 1)


def splits_evenly(num_inputs: int, parts: int) -> bool:
    """Whether so many parts are equal, aligned as the library's kernels want them, and not too short."""
    return num_inputs % (64 * parts) == 0 and num_inputs >= 512 * parts
