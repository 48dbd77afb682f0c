"""The draws of the native engine over logits that are there: on a CPU its sampler, on a GPU its kernels."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from dora_rl.engines.native.sampler import Drawn, Sampler
from dora_rl.engines.native.scheduling.step_plan import Entrant


class SlotDraws(Protocol):
    """Draws tokens; holds the distribution and the random stream of every slot."""

    def enter(self, entrants: Sequence[Entrant]) -> None:
        """Set how slots with new sequences draw."""
        ...

    def draw(self, logits_RV: Tensor, slots: Sequence[int], positions: Sequence[int]) -> Drawn:
        """Draw the token of each row that goes to its position. Overwrites the logits, which are float32."""
        ...


def draws_on(device: torch.device, num_slots: int, vocab_size: int) -> SlotDraws:
    """The draws for a kind of device."""
    if device.type == "cpu":
        return CpuDraws(num_slots, vocab_size)
    return CudaDraws(device, num_slots, vocab_size)


class CpuDraws:
    """The draws of the native engine on CPUs. Implements SlotDraws."""

    def __init__(self, num_slots: int, vocab_size: int) -> None:
        self._sampler = Sampler(num_slots, vocab_size)

    def enter(self, entrants: Sequence[Entrant]) -> None:
        """Set how slots with new sequences draw."""
        self._sampler.enter(entrants)

    def draw(self, logits_RV: Tensor, slots: Sequence[int], positions: Sequence[int]) -> Drawn:
        """Draw the token of each row that goes to its position. Overwrites the logits."""
        return self._sampler.draw(logits_RV, torch.tensor(slots), torch.tensor(positions))


class CudaDraws:
    """The draws of the native engine on GPUs. Implements SlotDraws."""

    def __init__(self, device: torch.device, num_slots: int, vocab_size: int) -> None:
        from dora_rl.engines.native.cuda.kernels.gumbel_draw import Pieces
        from dora_rl.engines.native.cuda.slots import SlotSampling

        self._device = device
        self._slots = SlotSampling(num_slots, vocab_size, device)
        self._pieces = Pieces.empty(num_slots, vocab_size, device)
        self._tokens = torch.empty(num_slots, dtype=torch.int32, device=device)
        self._logprobs = torch.empty(num_slots, device=device)

    def enter(self, entrants: Sequence[Entrant]) -> None:
        """Set how slots with new sequences draw."""
        if entrants:
            self._slots.enter(entrants)

    def draw(self, logits_RV: Tensor, slots: Sequence[int], positions: Sequence[int]) -> Drawn:
        """Draw the token of each row that goes to its position; rows that are cut once more."""
        from dora_rl.engines.native.cuda.cache import to_device
        from dora_rl.engines.native.cuda.kernels.gumbel_draw import draw

        num_rows, logits_RV = len(slots), logits_RV.contiguous()
        places_2R = to_device(torch.tensor([slots, positions], dtype=torch.int32), self._device)
        tokens_R, logprobs_R = self._tokens[:num_rows], self._logprobs[:num_rows]
        how = self._slots.distributions
        draw(logits_RV, places_2R[0], places_2R[1], how, self._pieces, tokens_R, logprobs_R)
        drawn = Drawn(tokens_R.long(), logprobs_R.clone(), logprobs_R.clone())
        if cut := self._slots.cut_rows(slots):
            again = self._slots.draw_cut(
                logits_RV[cut], [slots[row] for row in cut], [positions[row] for row in cut]
            )
            for values, redrawn in zip(drawn, again, strict=True):
                values[cut] = redrawn
        return drawn
