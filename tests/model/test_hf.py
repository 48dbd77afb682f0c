"""Models of transformers behind the calls of the native decoder: the same logits, and nothing leaks."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from dora_rl.bench.tiny_models import ATTENDING, FAMILIES, VOCAB_SIZE, save_tiny_hf
from dora_rl.core.errors import ModelError
from dora_rl.model.hf.hf_decoder import HfDecoder
from dora_rl.model.hf.hf_model import read_hf_model
from dora_rl.model.language_model import hidden_of, pieces_of, save_model
from dora_rl.model.packed_sequences import pack

SEQUENCES = [[5, 9, 11, 20, 30, 40, 50, 60, 70, 80, 90, 100, 3, 4], [7, 8, 9], list(range(1, 25))]
"""Some longer than every window, some of the same size as others."""


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_hf(request.param, tmp_path_factory.mktemp(request.param))


def decoder_of(directory: Path, *, is_filled_up: bool = False) -> HfDecoder:
    return HfDecoder.load(read_hf_model(directory), dtype=torch.float32, is_filled_up=is_filled_up)


@torch.no_grad()
def logits_of(decoder: HfDecoder, sequences: list[list[int]]) -> list[Tensor]:
    packed = pack(sequences)
    return list(decoder.logits(hidden_of(decoder, packed)).split(packed.lengths))


@torch.no_grad()
def test_packed_sequences_get_the_logits_of_transformers(directory: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    for is_filled_up in (False, True):
        decoder = decoder_of(directory, is_filled_up=is_filled_up)
        for sequence, own in zip(SEQUENCES, logits_of(decoder, SEQUENCES), strict=True):
            expected = reference(torch.tensor([sequence])).logits[0]
            torch.testing.assert_close(own, expected, rtol=0, atol=6e-6 * float(expected.abs().max()))


def test_sequences_see_nothing_of_each_other(directory: Path) -> None:
    decoder = decoder_of(directory)
    before = logits_of(decoder, SEQUENCES)
    others = [[1 + token % 90 for token in SEQUENCES[0]], SEQUENCES[1], list(range(60, 84))]
    after = logits_of(decoder, others)
    assert (before[0] - after[0]).abs().max() > 1e-3
    # Where experts gather their tokens, the shape of a product depends on the neighbours; nothing else does.
    torch.testing.assert_close(before[1], after[1], rtol=0, atol=1e-6 * float(before[1].abs().max()))


def test_logprobs_are_those_of_the_logits(directory: Path) -> None:
    decoder, packed = decoder_of(directory), pack(SEQUENCES)
    targets = torch.arange(len(packed.tokens_T)) % VOCAB_SIZE
    hidden = hidden_of(decoder, packed)
    found = decoder.logprobs(hidden, targets, 0.7)
    scores = (decoder.logits(hidden) / 0.7).log_softmax(-1)
    torch.testing.assert_close(found.logprobs_T, scores.gather(1, targets[:, None])[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found.entropy_T, -(scores.exp() * scores).sum(-1), atol=1e-5, rtol=0)
    found.logprobs_T.sum().backward()
    assert all(each.grad is not None for name, each in decoder.named_parameters() if "expert" not in name)


def test_recomputed_layers_have_the_same_gradients(directory: Path) -> None:
    decoder, packed = decoder_of(directory), pack(SEQUENCES)
    gradients, passes = [], []
    inner = next(each for each in decoder.layers[0].children() if next(each.parameters(), None) is not None)
    inner.register_forward_hook(lambda *given: passes.append(given))
    for is_checkpointed in (False, True):
        decoder.is_checkpointed = is_checkpointed
        assert decoder.is_checkpointed == is_checkpointed
        decoder.zero_grad()
        hidden_of(decoder, packed).square().sum().backward()
        gradients.append([each.grad for each in decoder.parameters() if each.grad is not None])
    assert len(passes) == 1 + 2
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)


def test_what_is_written_opens_as_what_was_trained(directory: Path, tmp_path: Path) -> None:
    decoder = decoder_of(directory)
    weights = {name: (2 * each).bfloat16() for name, each in decoder.named_parameters()}
    save_model(decoder, weights, tmp_path / "trained", origin=directory)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    assert again.dtype == torch.bfloat16
    assert again.config.model_type == decoder.own.config.model_type
    opened = dict(again.named_parameters())
    assert opened.keys() == weights.keys() == {piece.parameter for piece in pieces_of(decoder.config)}
    for name, weight in weights.items():
        assert torch.equal(opened[name], weight), name
    with pytest.raises(ModelError, match="already holds a model"):
        save_model(decoder, weights, tmp_path / "trained")


def test_a_cast_leaves_alone_what_is_no_weight(directory: Path) -> None:
    decoder = decoder_of(directory)
    before = {name: each.clone() for name, each in decoder.named_buffers()}
    decoder.to(torch.bfloat16)
    assert {each.dtype for each in decoder.parameters()} == {torch.bfloat16}
    for name, each in decoder.named_buffers():
        assert torch.equal(each, before[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_whose_attention_is_ours_is_known_from_the_configuration(family: str, tmp_path: Path) -> None:
    model = read_hf_model(save_tiny_hf(family, tmp_path))
    if family in ATTENDING:
        assert model.why_whole is None
        assert (model.num_layers, model.head_dim, model.num_heads) == (2, 16, 4)
    else:
        assert "linear_attention" in (model.why_whole or "")


@pytest.mark.parametrize("family", ["gpt2"])
def test_a_weight_that_is_missing_is_named(family: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = save_tiny_hf(family, tmp_path) / "model.safetensors"
    tensors = load_file(file)
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks transformer\.h\.1\.mlp\.c_fc\.weight"):
        decoder_of(tmp_path)
