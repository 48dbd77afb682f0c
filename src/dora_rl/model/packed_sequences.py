"""Sequences laid end to end: one row of tokens, no padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Tokens of several sequences, one after the other, each with its position in its own sequence."""

    tokens_T: Tensor
    positions_T: Tensor
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        assert min(self.lengths, default=0) > 0, f"empty sequence among lengths {self.lengths}"
        assert self.tokens_T.shape == self.positions_T.shape == (sum(self.lengths),), (
            f"{self.tokens_T.shape} tokens and {self.positions_T.shape} positions for {sum(self.lengths)}"
        )

    @property
    def cu_seqlens(self) -> Tensor:
        """Where each sequence begins, and the last one ends: int32, as variable-length kernels take it."""
        ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        if not self.tokens_T.is_cuda:
            return ends
        # From pinned memory, so that the host need not wait for the device to catch up.
        return ends.pin_memory().to(self.tokens_T.device, non_blocking=True)


def filled_up(firsts_N: Tensor, lengths_N: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences side by side, `[sequences, longest]`: the row of each token, and which are there.

    What only fills up is the sequence's last row again.
    """
    offsets_L, lengths_N1 = torch.arange(int(lengths_N.max())), lengths_N[:, None]
    rows_NL = firsts_N[:, None] + torch.minimum(offsets_L, lengths_N1 - 1)
    return rows_NL, offsets_L < lengths_N1


def pack(sequences: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Packed:
    """Lay whole sequences end to end, each from position 0."""
    lengths = tuple(len(sequence) for sequence in sequences)
    tokens = torch.tensor([token for sequence in sequences for token in sequence], device=device)
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    return Packed(tokens_T=tokens, positions_T=positions, lengths=lengths)
