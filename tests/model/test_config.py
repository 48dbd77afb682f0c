"""Published configurations of either spelling become one record, and what is not computed is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from transformers import AutoConfig, PreTrainedModel

from dora_rl.core.errors import ModelError
from dora_rl.model.config import ModelConfig, YarnRope
from dora_rl.model.families import FAMILIES
from dora_rl.model.hub_config import from_published, to_published, why_not_native

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
}
FACTORS = {"short_factor": [1.0], "long_factor": [1.0]}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}


def test_what_is_written_reads_as_the_same_model(reference: PreTrainedModel) -> None:
    config = from_published(reference.config.to_dict())
    assert from_published(to_published(config)) == config


def test_transformers_reads_what_is_written(reference: PreTrainedModel) -> None:
    written = to_published(from_published(reference.config.to_dict()))
    theirs = AutoConfig.for_model(**written).to_dict()
    assert from_published(theirs) == from_published(written)


def test_both_spellings_of_rope_and_dtype_are_one_model() -> None:
    old = PLAIN | {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", **YARN}, "torch_dtype": "bfloat16"}
    new = PLAIN | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, **YARN}, "dtype": "bfloat16"}
    assert from_published(old) == from_published(new)
    assert isinstance(from_published(new).rope, YarnRope)


def test_both_spellings_are_written() -> None:
    written = to_published(from_published(PLAIN | {"rope_theta": 5e5, "dtype": "bfloat16"}))
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 5e5
    assert written["dtype"] == written["torch_dtype"] == "bfloat16"


def test_qwen3_heads_are_128_wide_unless_said_otherwise() -> None:
    assert from_published(PLAIN | {"model_type": "qwen3"}).head_dim == 128
    assert from_published(PLAIN).head_dim == 8


def test_qwen2_has_biases_on_queries_keys_and_values_only() -> None:
    config = from_published(PLAIN | {"model_type": "qwen2"})
    assert config.has_qkv_bias
    assert not config.has_output_bias


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": "gpt2"}, "model type 'gpt2' is not supported"),
        ({"model_type": None}, "model type None is not supported"),
        ({"hidden_size": "wide"}, "cannot be read: .*int.*hidden_size"),
        ({"hidden_act": "gelu"}, "not supported: the activation 'gelu'"),
        ({"mlp_bias": True}, "not supported: biases in the MLP"),
        ({"use_sliding_window": True}, "not supported: sliding-window attention"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window attention"),
        ({"quantization_config": {"bits": 4}}, "quantized weights"),
        ({"partial_rotary_factor": 0.5}, "part of each head"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' are not supported: they change"),
        ({"rope_scaling": {"type": "spiral"}}, "'spiral' are not supported"),
        ({"rope_scaling": {"type": "longrope"}}, "'longrope' are incomplete: .*short_factor"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope", **FACTORS}}, "1 factors .* for 8"),
        ({"model_type": "phi3", "rope_scaling": {"type": "yarn", **YARN}}, "'default' or 'longrope'"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.4}, "3 of 8 dimensions"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers has 1 of 2"),
        ({"model_type": "smollm3", "no_rope_layer_interval": 0}, "no_rope_layer_interval cannot be 0"),
        ({"model_type": "mistral", "sliding_window": 0}, "window cannot be 0"),
        ({"model_type": "mistral", "layer_types": ["sliding_attention"] * 2}, "sliding-window attention"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "layer_types names 1 layers"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "soft caps"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "looks ahead"),
        ({"model_type": "gemma3_text", "hidden_activation": "gelu"}, "the activation 'gelu'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'linear' are incomplete: .*factor"),
        ({"dtype": "int8"}, "weights of type 'int8'"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"num_hidden_layers": 0}, "at least one layer"),
        ({"head_dim": 7}, "even head size"),
        ({"model_type": "qwen3_moe"}, "lacks num_experts"),
        ({"model_type": "qwen3_moe", "num_experts": 2}, "8 of 2 experts"),
        ({"model_type": "qwen3_moe", "num_experts": 8, "decoder_sparse_step": 0}, "decoder_sparse_step"),
    ],
)
def test_what_is_not_computed_is_refused_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        from_published(PLAIN | change)


def test_a_key_left_out_is_named() -> None:
    with pytest.raises(ModelError, match="hidden_size"):
        from_published({key: value for key, value in PLAIN.items() if key != "hidden_size"})


def test_experts_take_every_layer_that_is_not_dense() -> None:
    experts = {"num_experts": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    config = from_published(PLAIN | experts | {"model_type": "qwen3_moe", "num_hidden_layers": 6})
    assert [layer for layer in range(6) if config.experts_of(layer)] == [1, 5]


def test_a_model_without_experts_has_none_anywhere() -> None:
    config: ModelConfig = from_published(PLAIN)
    assert not any(config.experts_of(layer) for layer in range(config.num_layers))


def test_a_model_is_native_or_it_is_said_why_not(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PLAIN))
    assert why_not_native(path) is None
    path.write_text(json.dumps(PLAIN | {"model_type": "gpt2", "n_embd": 8}))
    assert why_not_native(path) == "model type 'gpt2' is not supported"
    path.write_text(json.dumps(PLAIN | {"mlp_bias": True}))
    assert why_not_native(path) == "not supported: biases in the MLP"
    path.write_text(json.dumps(PLAIN | {"num_key_value_heads": 3}))
    with pytest.raises(ModelError, match="cannot share 3"):
        why_not_native(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_left_out_are_what_transformers_takes(family: str) -> None:
    keys = {key: PLAIN[key] for key in PLAIN if key not in ("model_type", "num_key_value_heads")}
    keys |= {"num_attention_heads": 32, "hidden_size": 128, "eos_token_id": 1}
    theirs = AutoConfig.for_model(model_type=family, **keys)
    ours = from_published({"model_type": family, **keys, "num_experts": 128})
    own = replace(from_published(theirs.to_dict()), is_tied=theirs.tie_word_embeddings)
    assert replace(ours, bos_token_id=None) == replace(own, bos_token_id=None, pad_token_id=None)


def test_longrope_takes_sequences_up_to_the_original_length_and_publishes_the_longest() -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    given = PLAIN | {"model_type": "phi3", "rope_scaling": scaling, "original_max_position_embeddings": 40}
    config = from_published(given)
    assert config.max_positions == 40
    assert to_published(config)["max_position_embeddings"] == 128


def test_a_part_of_each_head_is_written_so_that_readers_find_it_again() -> None:
    for head_dim in range(4, 130, 2):
        for size in range(2, head_dim, 2):
            given = {
                "model_type": "phi3",
                "head_dim": head_dim,
                "partial_rotary_factor": (size + 0.5) / head_dim,
            }
            config = from_published(PLAIN | given)
            assert config.rotary_size == size
            assert from_published(to_published(config)) == config
