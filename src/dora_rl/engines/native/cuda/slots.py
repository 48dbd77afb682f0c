"""How each slot draws, on the device; which slots cut their distribution, on the host."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dora_rl.engines.config import EngineConfig
from dora_rl.engines.native.cuda.cache import to_device
from dora_rl.engines.native.cuda.kernels.gumbel_draw import Distributions
from dora_rl.engines.native.philox import gumbel
from dora_rl.engines.native.sampler import Drawn, keep_likeliest
from dora_rl.engines.native.scheduling.step_plan import Entrant
from dora_rl.engines.requests import Sampling
from dora_rl.model.config import ModelConfig

CUT_ROWS = 16
"""Number of rows whose cut distributions are in memory at a time."""
_CUT_VALUE_BYTES = 96
"""Bytes for a word of the vocabulary: logit, rank, share and noise at every stage, and sorting."""
SLOT_BYTES = 4 + 4 + 4 * 8 + 4


def cut_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Bytes of the largest tensors that live while distributions are cut."""
    return min(CUT_ROWS, config.limits.max_running) * model.vocab_size * _CUT_VALUE_BYTES


class SlotSampling:
    """The distribution and the random stream of every slot."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._cuts: dict[int, Sampling] = {}
        self.distributions = Distributions(
            temperature_S=torch.ones(num_slots, device=device),
            is_greedy_S=torch.zeros(num_slots, dtype=torch.int32, device=device),
            streams_S4=torch.zeros(num_slots, 4, dtype=torch.int64, device=device),
            drawn_S=torch.zeros(num_slots, dtype=torch.int32, device=device),
        )

    def enter(self, entrants: Sequence[Entrant]) -> None:
        """Set how slots with new sequences draw; the last entry for a slot counts."""
        latest = {entrant.slot: entrant for entrant in entrants}
        for slot, entrant in latest.items():
            self._cuts.pop(slot, None)
            if entrant.sampling.is_cut:
                self._cuts[slot] = entrant.sampling
        samplings = [entrant.sampling for entrant in latest.values()]
        slots = self._put(torch.tensor(list(latest)))
        temperatures = [1.0 if each.is_greedy else each.temperature for each in samplings]
        is_greedy = torch.tensor([each.is_greedy for each in samplings], dtype=torch.int32)
        streams = torch.tensor([entrant.stream for entrant in latest.values()])
        own = self.distributions
        own.temperature_S.index_copy_(0, slots, self._put(torch.tensor(temperatures)))
        own.is_greedy_S.index_copy_(0, slots, self._put(is_greedy))
        own.streams_S4.index_copy_(0, slots, self._put(streams))

    def cut_rows(self, slots: Sequence[int]) -> list[int]:
        """The rows whose distribution is cut by top-k, top-p or min-p."""
        return [row for row, slot in enumerate(slots) if slot in self._cuts] if self._cuts else []

    def draw_cut(self, logits_RV: Tensor, slots: Sequence[int], positions: Sequence[int]) -> Drawn:
        """Draw the tokens of rows whose distribution is cut, and keep them as their slots' last."""
        cuts = [self._cuts[slot] for slot in slots]
        slots_R = self._put(torch.tensor(slots))
        top_k = [min(each.top_k or self._vocab_size, self._vocab_size) for each in cuts]
        limits = (
            self._put(torch.tensor(column))
            for column in (top_k, [each.top_p for each in cuts], [each.min_p for each in cuts])
        )
        own = self.distributions
        scaled_RV = logits_RV / own.temperature_S[slots_R, None]
        kept_RV = keep_likeliest(scaled_RV, *limits)
        noise_RV = gumbel(own.streams_S4[slots_R], self._put(torch.tensor(positions)), self._vocab_size)
        tokens_R = noise_RV.add_(kept_RV).argmax(dim=1)
        scores_R = scaled_RV.gather(1, tokens_R[:, None]).squeeze(1)
        own.drawn_S.index_copy_(0, slots_R, tokens_R.int())
        return Drawn(tokens_R, scores_R - scaled_RV.logsumexp(dim=1), scores_R - kept_RV.logsumexp(dim=1))

    def _put(self, values: Tensor) -> Tensor:
        return to_device(values, self._device)
