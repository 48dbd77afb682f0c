"""Directories round-trip bit for bit, transformers opens them, and a bad one is told by what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from dora_rl.core.errors import ModelError
from dora_rl.model.load import load_decoder
from dora_rl.model.save import save_decoder
from dora_rl.model.shards import INDEX, WEIGHTS, published_tensors
from dora_rl.model.tiny import seeded_decoder, tiny_config

Tensors = dict[str, Tensor]
Q0 = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small tied model in one file."""
    save_decoder(seeded_decoder(tiny_config(50), seed=0), tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The same in several shards."""
    save_decoder(seeded_decoder(tiny_config(50), seed=0), tmp_path / "sharded", shard_bytes=100_000)
    return tmp_path / "sharded"


def is_bitwise_equal(one: Tensors, other: Tensors) -> bool:
    same = (torch.equal(one[name].view(torch.uint8), other[name].view(torch.uint8)) for name in one)
    return one.keys() == other.keys() and all(same)


def edit(directory: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS)


def test_load_and_save_give_back_every_bit(directory: Path, tmp_path: Path) -> None:
    save_decoder(load_decoder(directory), tmp_path / "again", shard_bytes=50_000)
    assert (tmp_path / "again" / INDEX).exists()
    assert is_bitwise_equal(dict(published_tensors(directory)), dict(published_tensors(tmp_path / "again")))


@torch.no_grad()
def test_transformers_opens_what_is_saved(
    reference: PreTrainedModel, directory: Path, tmp_path: Path, sequences: list[list[int]]
) -> None:
    save_decoder(load_decoder(directory), tmp_path / "again", shard_bytes=50_000)
    again, loading = AutoModelForCausalLM.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(loading.values()), loading
    assert type(again) is type(reference)
    tokens = torch.tensor([sequences[2]])
    assert torch.equal(again(tokens).logits, reference(tokens).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_dtype_travels_with_the_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    decoder = seeded_decoder(tiny_config(50), seed=0).to(dtype)
    save_decoder(decoder, tmp_path)
    again = load_decoder(tmp_path)
    assert is_bitwise_equal(decoder.state_dict(), again.state_dict())
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == dtype


def test_a_loader_may_ask_for_another_dtype(saved: Path) -> None:
    exact, cast = load_decoder(saved), load_decoder(saved, dtype=torch.bfloat16)
    assert is_bitwise_equal(exact.to(torch.bfloat16).state_dict(), cast.state_dict())


def test_shards_change_nothing(saved: Path, sharded: Path) -> None:
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert is_bitwise_equal(load_decoder(saved).state_dict(), load_decoder(sharded).state_dict())


def test_tokenizer_and_generation_defaults_come_along(saved: Path, tmp_path: Path) -> None:
    companions = {"tokenizer.json": "{}", "chat_template.jinja": "{{ 1 }}", "generation_config.json": "[7]"}
    for name, text in companions.items():
        (saved / name).write_text(text)
    save_decoder(load_decoder(saved), tmp_path / "trained", origin=saved)
    assert {name: (tmp_path / "trained" / name).read_text() for name in companions} == companions


def test_a_model_is_not_written_over_another(saved: Path) -> None:
    with pytest.raises(ModelError, match="already holds a model"):
        save_decoder(load_decoder(saved), saved)


def test_a_tied_head_may_be_written_out_if_it_is_the_embedding(saved: Path) -> None:
    edit(saved, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    load_decoder(saved)
    edit(saved, lambda t: t["lm_head.weight"].mul_(2))
    with pytest.raises(ModelError, match=r"'lm_head\.weight' differs from the embedding"):
        load_decoder(saved)


def test_frequencies_kept_by_old_checkpoints_are_passed_over(saved: Path) -> None:
    edit(saved, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    load_decoder(saved)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop(Q0), f"tensor '{Q0}' is missing"),
        (lambda t: t.clear(), "'model.embed_tokens.weight' is missing, and 23 more"),
        (lambda t: t.update(extra=torch.ones(2)), r"unexpected tensor 'extra' of shape \[2\]"),
        (lambda t: t.update({Q0: t[Q0][:-1].clone()}), rf"'{Q0}' has shape \[63, 64\], not \[64, 64\]"),
        (lambda t: t.update({Q0: t[Q0].to(torch.int8)}), f"'{Q0}' is quantized"),
        (lambda t: t.update({Q0: t[Q0].to(torch.float8_e4m3fn)}), f"'{Q0}' is quantized"),
    ],
)
def test_weights_at_odds_with_the_configuration_are_named(
    saved: Path, change: Callable[[Tensors], object], sentence: str
) -> None:
    edit(saved, change)
    with pytest.raises(ModelError, match=sentence):
        load_decoder(saved)


def test_a_truncated_file_is_named(saved: Path) -> None:
    whole = (saved / WEIGHTS).read_bytes()
    for kept in (0, 5, 100, len(whole) - 1):
        (saved / WEIGHTS).write_bytes(whole[:kept])
        with pytest.raises(ModelError, match=rf"{WEIGHTS} is damaged"):
            load_decoder(saved)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00005.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00005.safetensors is missing"):
        load_decoder(sharded)


def test_a_shard_without_what_the_index_promises_is_named(sharded: Path) -> None:
    save_file({"model.norm.weight": torch.ones(64)}, sharded / "model-00002-of-00005.safetensors")
    with pytest.raises(ModelError, match=r"model-00002-of-00005.safetensors lacks tensor"):
        load_decoder(sharded)


@pytest.mark.parametrize("index", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../elsewhere"}}'])
def test_a_broken_index_is_named(sharded: Path, index: str) -> None:
    (sharded / INDEX).write_text(index)
    with pytest.raises(ModelError, match=INDEX):
        load_decoder(sharded)


def test_pickled_weights_are_not_opened(saved: Path) -> None:
    (saved / WEIGHTS).rename(saved / "pytorch_model.bin")
    with pytest.raises(ModelError, match="no safetensors weights") as raised:
        load_decoder(saved)
    assert raised.value.hint is not None
    assert "pickled" in raised.value.hint


def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*config.json"):
        load_decoder(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config.json is not valid JSON"):
        load_decoder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ModelError, match=r"config.json: model type 'bert'"):
        load_decoder(tmp_path)
