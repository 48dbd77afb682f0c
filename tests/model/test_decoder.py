"""The decoder computes what transformers computes, however sequences are packed or cut."""

import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from dora_rl.model.attention import PackedAttention
from dora_rl.model.decoder import Decoder
from dora_rl.model.load import load_decoder
from dora_rl.model.packed_sequences import Packed, pack
from dora_rl.model.rope import inverse_frequencies
from dora_rl.model.tiny import seeded_decoder, tiny_config


class CachedAttention:
    """One sequence, some tokens at a time: the smallest engine behind the seam."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None = None
    ) -> Tensor:
        old_k, old_v = self.seen.get(layer, (k_TKD[:0], v_TKD[:0]))
        k, v = torch.cat((old_k, k_TKD)), torch.cat((old_v, v_TKD))
        self.seen[layer] = k, v
        is_visible = torch.ones(len(q_THD), len(k), dtype=torch.bool).tril(len(old_k))
        if window is not None:
            is_visible = is_visible.triu(len(old_k) - window + 1)
        q, k, v = (heads.transpose(0, 1)[None] for heads in (q_THD, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_visible, enable_gqa=True)
        return mixed[0].transpose(0, 1)


def run(decoder: Decoder, packed: Packed) -> Tensor:
    return decoder(packed.tokens_T, packed.positions_T, PackedAttention(packed.lengths))


def deviation(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@torch.no_grad()
def test_logits_equal_those_of_transformers(
    reference: PreTrainedModel, directory: Path, sequences: list[list[int]]
) -> None:
    decoder = load_decoder(directory)
    ours = decoder.logits(run(decoder, pack(sequences)))
    theirs = torch.cat([reference(torch.tensor([tokens])).logits[0] for tokens in sequences])
    assert ours.dtype == torch.float32
    assert deviation(ours, theirs) < 1e-4


def test_gradients_equal_those_of_transformers(
    reference: PreTrainedModel, directory: Path, sequences: list[list[int]], tmp_path: Path
) -> None:
    decoder, reference, packed = load_decoder(directory), deepcopy(reference), pack([sequences[2]])
    weights = torch.randn(len(packed.tokens_T), 97, generator=torch.Generator().manual_seed(2))
    (decoder.logits(run(decoder, packed)) * weights).sum().backward()
    (reference(packed.tokens_T[None]).logits[0] * weights).sum().backward()
    for parameter in reference.parameters():
        parameter.data = parameter.grad
    # Saved in place of the weights, transformers' gradients come back in our layout.
    reference.save_pretrained(tmp_path / "gradients")
    theirs = dict(load_decoder(tmp_path / "gradients").named_parameters())
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None, name
        assert deviation(parameter.grad, theirs[name].detach()) < 1e-4, name


@torch.no_grad()
def test_a_packed_sequence_is_as_alone(directory: Path, sequences: list[list[int]]) -> None:
    decoder = load_decoder(directory)
    alone = torch.cat([run(decoder, pack([tokens])) for tokens in sequences])
    torch.testing.assert_close(run(decoder, pack(sequences)), alone, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_sequence_cut_into_chunks_is_as_whole(directory: Path, sequences: list[list[int]]) -> None:
    decoder, packed, cached = load_decoder(directory), pack([sequences[2]]), CachedAttention()
    cuts = [50, 1, 79]
    chunks = zip(packed.tokens_T.split(cuts), packed.positions_T.split(cuts), strict=True)
    hidden = torch.cat([decoder(tokens, positions, cached) for tokens, positions in chunks])
    torch.testing.assert_close(hidden, run(decoder, packed), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_stays_near_float32(dtype: torch.dtype, sequences: list[list[int]]) -> None:
    decoder = seeded_decoder(tiny_config(97), seed=3)
    exact = decoder.logits(run(decoder, pack(sequences)))
    half = decoder.to(dtype)
    rounded = half.logits(run(half, pack(sequences)))
    assert rounded.dtype == torch.float32
    assert deviation(rounded, exact) < 0.03


def test_frequencies_are_bitwise_those_of_transformers(reference: PreTrainedModel, directory: Path) -> None:
    config, theirs = load_decoder(directory).config, reference.model.rotary_emb
    ours = inverse_frequencies(config.rope, config.rotated_size)
    if config.sliding_rope is None:
        assert torch.equal(ours, theirs.inv_freq)
    else:
        sliding = inverse_frequencies(config.sliding_rope, config.rotated_size)
        assert torch.equal(ours, theirs.full_attention_inv_freq)
        assert torch.equal(sliding, theirs.sliding_attention_inv_freq)


@torch.no_grad()
def test_casting_a_decoder_leaves_its_rotary_positions_exact() -> None:
    decoder = seeded_decoder(tiny_config(97), seed=3).to(torch.bfloat16).to(torch.float32)
    again = Decoder.empty(decoder.config)
    again.load_state_dict(decoder.state_dict())
    packed = pack([list(range(97)) * 20])
    assert torch.equal(run(decoder, packed), run(again, packed))


def test_cu_seqlens_bound_the_sequences() -> None:
    packed = pack([[5, 6], [7], [8, 9, 10]])
    assert packed.cu_seqlens.tolist() == [0, 2, 3, 6]
    assert packed.cu_seqlens.dtype == torch.int32
    assert packed.positions_T.tolist() == [0, 1, 0, 0, 1, 2]


def test_an_empty_sequence_cannot_be_packed() -> None:
    with pytest.raises(AssertionError, match="empty sequence"):
        pack([[1], []])


def test_a_decoder_is_made_without_the_compiler() -> None:
    """To import what torch compiles with takes seconds of every start."""
    code = (
        "import sys, torch; from dora_rl.model.decoder import Decoder;"
        "from dora_rl.model.random_models import TINY;"
        "decoder = Decoder.empty(TINY, dtype=torch.bfloat16); import dora_rl.trainer.trainer_factory;"
        "print(decoder.norm.weight.device, decoder.norm.weight.dtype,"
        " *sorted({'sympy', 'torch._dynamo', 'torch.distributed.fsdp'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["cpu", "torch.bfloat16"]
