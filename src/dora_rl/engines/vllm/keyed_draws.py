"""Tokens drawn in vLLM by the keyed noise that the native engine draws by.

A draw is a function of the request's stream and the token's position, so it does not depend on batch,
preemption or instance, and equal logits give the native engine's token. vLLM tells a logits processor which
request is in which row; its sampler is replaced by one that asks that processor for tokens and their
log-probabilities at the sampling temperature.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.sample.sampler import Sampler as VllmSampler

from dora_rl.engines.native.sampler import Drawn
from dora_rl.engines.native.scheduling.step_plan import Entrant
from dora_rl.engines.requests import Sampling
from dora_rl.engines.streams import Words
from dora_rl.engines.vllm.draws import draws_on

_DRAWS = "dora_rl"


def draw_params(sampling: Sampling, stream: Words, max_tokens: int, output_kind: Any) -> SamplingParams:
    """What vLLM is told of a request: how long it may grow, and how its tokens are drawn."""
    return SamplingParams(
        # To vLLM's own eyes it is greedy: it keeps no generator, and cuts nothing.
        temperature=0.0,
        max_tokens=max_tokens,
        ignore_eos=True,
        detokenize=False,
        # The second is the log-probability after the cut.
        logprobs=1 if sampling.is_cut else 0,
        extra_args={_DRAWS: (sampling, stream)},
        output_kind=output_kind,
    )


@dataclass(slots=True)
class _Row:
    """A request in a row of vLLM's batch."""

    slot: int
    num_prompt_tokens: int
    drawn: list[int]
    """The tokens drawn so far: vLLM's own list, which grows."""


class KeyedDraws(LogitsProcessor):  # type: ignore[misc]
    """Follows which request is in which row of the batch, and draws each row by its request's stream."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        slots = vllm_config.scheduler_config.max_num_seqs
        self._draws = draws_on(device, slots, vllm_config.model_config.get_vocab_size())
        self._free = list(range(slots))
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        """False, so that vLLM keeps this processor where requests are greedy."""
        return False

    def apply(self, logits: Tensor) -> Tensor:
        """Leave the logits as they are: the sampler asks for the tokens."""
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the requests that left the batch, entered it and changed rows, in this order."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._release(self._rows.pop(index, None))
        entrants = []
        for index, params, prompt, drawn in batch_update.added:
            self._release(self._rows.pop(index, None))
            sampling, stream = params.extra_args[_DRAWS]
            self._rows[index] = _Row(self._free.pop(), len(prompt or ()), drawn)
            entrants.append(Entrant(slot=self._rows[index].slot, version=0, sampling=sampling, stream=stream))
        for source, target, direction in batch_update.moved:
            moved, other = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if direction == MoveDirectionality.SWAP and other is not None:
                self._rows[source] = other
            else:
                self._release(other)
        self._draws.enter(entrants)

    def _release(self, row: _Row | None) -> None:
        if row is not None:
            self._free.append(row.slot)

    def draw(self, logits_RV: Tensor) -> Drawn:
        """Draw the next token of every row. Overwrites the logits."""
        rows = [self._rows[index] for index in range(len(logits_RV))]
        positions = [row.num_prompt_tokens + len(row.drawn) for row in rows]
        return self._draws.draw(logits_RV, [row.slot for row in rows], positions)


class KeyedSampler(VllmSampler):  # type: ignore[misc]
    """In place of vLLM's sampler: tokens from KeyedDraws, and their log-probabilities with them."""

    def forward(self, logits: Tensor, sampling_metadata: Any, *args: Any, **kwargs: Any) -> SamplerOutput:
        """Draw a token a row; what vLLM samples to measure itself is left to its own sampler."""
        keyed = [each for each in sampling_metadata.logitsprocs.all if isinstance(each, KeyedDraws)]
        if not keyed:
            return super().forward(logits, sampling_metadata, *args, **kwargs)
        drawn = keyed[0].draw(logits.to(torch.float32))
        tokens_R1, logprobs_R1 = drawn.tokens_R[:, None], drawn.logprobs_R[:, None]
        if sampling_metadata.max_num_logprobs:
            # Under another token's name, for vLLM keys them by token.
            beside_R1 = torch.where(tokens_R1 == 0, 1, tokens_R1 - 1)
            tokens_R1 = torch.cat([tokens_R1, beside_R1], dim=1)
            logprobs_R1 = torch.cat([logprobs_R1, drawn.cut_logprobs_R[:, None]], dim=1)
        return SamplerOutput(
            sampled_token_ids=drawn.tokens_R.to(torch.int32)[:, None],
            logprobs_tensors=LogprobsTensors(
                logprob_token_ids=tokens_R1.to(torch.int32),
                logprobs=logprobs_R1,
                selected_token_ranks=torch.zeros_like(drawn.tokens_R),
            ),
        )
