"""Logits of the tokens that are followed by a draw, and the draws."""

import torch
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.fixed import fixed_linear
from dora_rl.engines.native.cuda.kernels.gumbel_draw import Distributions, Pieces, draw
from dora_rl.engines.native.cuda.trunk import Way
from dora_rl.model.config import ModelConfig


class Head:
    """Computes logits and draws; holds the buffers for a number of draws."""

    def __init__(self, model: ModelConfig, num_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self._picked_RH = torch.empty(num_rows, model.hidden_size, dtype=dtype, device=device)
        self._pieces = Pieces.empty(num_rows, model.vocab_size, device)
        self.logits_RV = torch.empty(num_rows, model.vocab_size, device=device)
        self.answers_3R = torch.zeros(3, num_rows, dtype=torch.int32, device=device)
        """Answers: tokens, log-probabilities and those after a cut, both as the bits of float32."""

    @staticmethod
    def row_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
        """Bytes of the buffers for one draw."""
        return model.hidden_size * dtype.itemsize + model.vocab_size * 4 + 1024

    @property
    def logprobs_2R(self) -> Tensor:
        """Log-probabilities of the answers, before and after a cut."""
        return self.answers_3R[1:].view(torch.float32)

    def run(
        self,
        head_VH: Tensor,
        hidden_TH: Tensor,
        rows_R: Tensor,
        slots_R: Tensor,
        positions_R: Tensor,
        distributions: Distributions,
        way: Way,
    ) -> None:
        """Draw the tokens that follow these rows of the hidden states."""
        num = len(rows_R)
        picked, logits = self._picked_RH[:num], self.logits_RV[:num]
        torch.index_select(hidden_TH, 0, rows_R, out=picked)
        if way == "fixed":
            fixed_linear(picked, head_VH, logits)
        else:
            _float32_product(picked, head_VH, logits)
        tokens_R, logprobs_R = self.answers_3R[0, :num], self.logprobs_2R[0, :num]
        draw(logits, slots_R, positions_R, distributions, self._pieces, tokens_R, logprobs_R)
        self.answers_3R[2, :num].copy_(self.answers_3R[1, :num])


def _float32_product(inputs_RH: Tensor, head_VH: Tensor, out_RV: Tensor) -> None:
    """A product of half-precision operands, summed and kept in float32."""
    if inputs_RH.dtype == torch.float32:
        torch.mm(inputs_RH, head_VH.T, out=out_RV)
    else:
        torch.mm(inputs_RH, head_VH.T, out_dtype=torch.float32, out=out_RV)
