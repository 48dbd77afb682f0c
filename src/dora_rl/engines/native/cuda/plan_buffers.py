"""A plan as the integers that kernels read, at fixed addresses on the device.

Rows of one token are decoded, longer ones are prefilled; each kind is filled up to a bucket with tokens of a
slot that lies in scratch, so that few graphs serve all sizes. All integers of a step travel in one copy each
kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.embed import FROM_SLOT
from dora_rl.engines.native.scheduling.step_plan import PlannedRow

Integers = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many rows of each kind a step has, filled up and real, and the longest context it decodes over."""

    num_decoded: int
    prefilled: tuple[int, int] | None
    """Numbers of prefilled tokens and stretches, filled up."""
    num_sampled: int
    num_answers: int
    max_context: int
    has_guesses: bool
    """Whether several tokens of a sequence are decoded, of which each attends to those before it."""


@dataclass(slots=True, kw_only=True)
class _Rows:
    """Rows of a plan, sorted by kind."""

    decoded: list[tuple[int, int, int]]
    """Token, slot and position of each decoded token; guesses follow the token behind which they come."""
    prefilled: list[PlannedRow]
    sampled: list[tuple[int, int, int]]
    """Hidden row, slot and position of each draw."""
    has_guesses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The most rows that are decoded, or drawn for, and the most tokens that are prefilled in one step."""

    num_rows: int
    num_prefilled: int

    @property
    def num_hidden(self) -> int:
        """Rows of hidden states: of decoded tokens first, of prefilled ones behind them."""
        return self.num_rows + self.num_prefilled


class PlanBuffers:
    """The integers of the step in progress on the device, and of the next one on its way there."""

    def __init__(self, room: Room, *, filler_slot: int, stretch_tokens: int, device: torch.device) -> None:
        self._room = room
        self.stretch_tokens = stretch_tokens
        self._device = device
        self._filler_slot = filler_slot
        self._decode_words = torch.zeros(6, room.num_rows, dtype=torch.int32, device=device)
        self._prefill_words = torch.zeros(5, room.num_prefilled, dtype=torch.int32, device=device)

    @property
    def decode(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, slots and positions of decoded tokens."""
        tokens, slots, positions = self._decode_words[:3].unbind()
        return tokens, slots, positions

    @property
    def sample(self) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden rows, slots and positions of draws."""
        rows, slots, positions = self._decode_words[3:].unbind()
        return rows, slots, positions

    @property
    def prefill(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, slots and positions of prefilled tokens."""
        tokens, slots, positions = self._prefill_words[:3].unbind()
        return tokens, slots, positions

    @property
    def stretches_N2(self) -> Tensor:
        """The first token and the number of tokens of each stretch of prefilled tokens."""
        return self._prefill_words[3:].view(-1, 2)

    def put(self, rows: Sequence[PlannedRow]) -> tuple[Counts, list[tuple[int, int, int]]]:
        """Send the integers of a step; return its counts and its draws: hidden row, slot, position."""
        sorted_rows = self._sort(rows)
        num_sampled = self._put_decoded(sorted_rows)
        prefilled = self._put_prefilled(sorted_rows.prefilled)
        counts = Counts(
            num_decoded=bucket(len(sorted_rows.decoded), self._room.num_rows),
            prefilled=prefilled,
            num_sampled=num_sampled,
            num_answers=len(sorted_rows.sampled),
            max_context=max((position + 1 for _, _, position in sorted_rows.decoded), default=0),
            has_guesses=sorted_rows.has_guesses,
        )
        return counts, sorted_rows.sampled

    def _sort(self, rows: Sequence[PlannedRow]) -> _Rows:
        found = _Rows(decoded=[], prefilled=[], sampled=[])
        num_prefilled = 0
        for row in rows:
            if len(row.tokens) <= 1:
                hidden_row = len(found.decoded)
                found.decoded.append((row.tokens[0] if row.tokens else FROM_SLOT, row.slot, row.start))
                for place, guess in enumerate(row.guesses, start=1):
                    found.decoded.append((guess, row.slot, row.start + place))
                    found.sampled.append((hidden_row + place - 1, row.slot, row.start + place))
                hidden_row += len(row.guesses)
                found.has_guesses |= bool(row.guesses)
            else:
                num_prefilled += len(row.tokens)
                hidden_row = self._room.num_rows + num_prefilled - 1
                found.prefilled.append(row)
            if row.is_sampled:
                found.sampled.append((hidden_row, row.slot, row.start + row.num_tokens))
        return found

    def _put_decoded(self, rows: _Rows) -> int:
        words = torch.zeros(6, self._room.num_rows, dtype=torch.int32, pin_memory=self._pins)
        view: Integers = words.numpy()
        view[1] = view[4] = self._filler_slot
        num = len(rows.decoded)
        if num:
            view[:3, :num] = np.array(rows.decoded, dtype=np.int32).T
        if rows.sampled:
            view[3:, : len(rows.sampled)] = np.array(rows.sampled, dtype=np.int32).T
        self._decode_words.copy_(words, non_blocking=True)
        return bucket(len(rows.sampled), self._room.num_rows)

    def _put_prefilled(self, rows: Sequence[PlannedRow]) -> tuple[int, int] | None:
        if not rows:
            return None
        tokens = np.fromiter((token for row in rows for token in row.tokens), dtype=np.int32)
        lengths = [len(row.tokens) for row in rows]
        stretches = self._stretches(lengths)
        num_tokens = bucket(len(tokens), self._room.num_prefilled)
        num_stretches = bucket(len(stretches), len(self.stretches_N2))
        words = torch.zeros(5, self._room.num_prefilled, dtype=torch.int32, pin_memory=self._pins)
        view: Integers = words.numpy()
        view[1] = self._filler_slot
        view[0, : len(tokens)] = tokens
        view[1, : len(tokens)] = np.repeat([row.slot for row in rows], lengths)
        view[2, : len(tokens)] = np.concatenate(
            [np.arange(row.start, row.start + len(row.tokens)) for row in rows]
        )
        view[3:].reshape(-1, 2)[: len(stretches)] = stretches
        self._prefill_words.copy_(words, non_blocking=True)
        return num_tokens, num_stretches

    def _stretches(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        ends = [0, *np.cumsum(lengths).tolist()]
        size = self.stretch_tokens
        return [
            (first, min(size, end - first))
            for begin, end in pairwise(ends)
            for first in range(begin, end, size)
        ]

    @property
    def _pins(self) -> bool:
        return self._device.type == "cuda"


def bucket(count: int, most: int) -> int:
    """The size a count is filled up to: one of a few between every power of two and the next."""
    step = 1 << max(0, (count - 1).bit_length() - 3)
    return min(most, -(-count // step) * step)
