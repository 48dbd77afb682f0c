"""Draws over logits that another engine computed: on a GPU the tokens of the CPU."""

import pytest
import torch

from dora_rl.engines.native.scheduling.step_plan import Entrant
from dora_rl.engines.requests import Sampling, StreamKey
from dora_rl.engines.streams import stream_of
from dora_rl.engines.vllm.draws import CpuDraws, CudaDraws

VOCAB = 131


def test_rows_draw_alike_on_both_devices_cut_or_not(device: str) -> None:
    samplings = [
        Sampling(),
        Sampling(temperature=0.0),
        Sampling(top_k=5),
        Sampling(temperature=0.5),
        Sampling(temperature=1.4, top_p=0.7, min_p=0.05),
    ]
    entrants = [
        Entrant(slot=slot, version=0, sampling=sampling, stream=stream_of(StreamKey(seed=3, row=slot)))
        for slot, sampling in enumerate(samplings)
    ]
    there, here = CudaDraws(torch.device(device), 8, VOCAB), CpuDraws(8, VOCAB)
    there.enter(entrants)
    here.enter(entrants)
    there.enter([])
    # Rows are not in the order of slots.
    slots, tokens = [3, 1, 4, 0, 2], set()
    for position in range(6):
        logits_RV = 3 * torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(position))
        positions = [position + slot for slot in slots]
        ours = there.draw(logits_RV.to(device), slots, positions)
        theirs = here.draw(logits_RV.clone(), slots, positions)
        assert ours.tokens_R.tolist() == theirs.tokens_R.tolist()
        assert ours.logprobs_R.tolist() == pytest.approx(theirs.logprobs_R.tolist(), abs=1e-4)
        assert ours.cut_logprobs_R.tolist() == pytest.approx(theirs.cut_logprobs_R.tolist(), abs=1e-4)
        tokens.update(ours.tokens_R.tolist())
    assert len(tokens) > 10
