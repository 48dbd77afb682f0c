"""A model directory that cannot be trained is refused in a sentence with the file and the key."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dora_rl.core.errors import ModelError
from dora_rl.model.load import check_weights, load_decoder
from dora_rl.model.tiny import save_tiny
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer, open_tokenizer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "model")
    return tmp_path / "model"


def changed(directory: Path, **keys: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_a_whole_directory_is_accepted(directory: Path) -> None:
    check_weights(directory)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"hidden_size": 65}, "vocab_size and hidden_size"),
        ({"num_attention_heads": 8}, "num_attention_heads, head_dim and hidden_size"),
        ({"num_key_value_heads": 4}, "num_key_value_heads, head_dim and hidden_size"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key-value heads: num_attention_heads"),
        ({"intermediate_size": 7}, "intermediate_size and hidden_size"),
        ({"num_hidden_layers": 3}, "'model.layers.2.input_layernorm.weight' is missing"),
        ({"num_hidden_layers": 1}, "unexpected tensor 'model.layers.1"),
        ({"intermediate_size": 0}, "intermediate_size cannot be 0"),
        ({"head_dim": -2}, "head_dim cannot be -2"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"eos_token_id": 10**6}, "eos_token_id = 1000000 is no token"),
        ({"model_type": "gpt9"}, "model type 'gpt9'"),
    ],
)
def test_a_configuration_at_odds_with_the_weights_or_itself_names_the_key(
    directory: Path, keys: dict[str, Any], words: str
) -> None:
    changed(directory, **keys)
    with pytest.raises(ModelError, match="model") as refused:
        check_weights(directory)
    assert words in refused.value.message
    assert str(directory) in refused.value.message
    assert refused.value.hint


def test_a_missing_key_is_named(directory: Path) -> None:
    path = directory / "config.json"
    published = json.loads(path.read_text())
    del published["hidden_size"]
    path.write_text(json.dumps(published))
    with pytest.raises(ModelError, match=r"config.json: .*hidden_size"):
        check_weights(directory)


def test_whatever_is_accepted_can_be_loaded(directory: Path) -> None:
    """Every key with odd values: refused in a sentence, or the model loads."""
    good = json.loads((directory / "config.json").read_text())
    for key in good:
        for value in (None, -1, 0, 3, 10**12, "x", [], {}, 1.5, True):
            changed(directory, **(good | {key: value}))
            try:
                check_weights(directory)
            except ModelError:
                continue
            load_decoder(directory)


def without_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()


def pickled(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def cut(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "message", "hint"),
    [
        (without_weights, "no safetensors weights", "expected model.safetensors"),
        (pickled, "no safetensors weights", "convert them to safetensors"),
        (cut, "is damaged", "copy or download"),
    ],
)
def test_weights_that_cannot_be_read_are_refused(
    directory: Path, spoil: Callable[[Path], None], message: str, hint: str
) -> None:
    spoil(directory)
    with pytest.raises(ModelError, match=message) as refused:
        check_weights(directory)
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\0" * 50, '{"model": 3}'])
def test_a_damaged_tokenizer_is_a_sentence_with_its_place(directory: Path, text: str) -> None:
    (directory / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match="tokenizer") as refused:
        load_tokenizer(directory)
    assert str(directory) in refused.value.message
    assert "\n" not in refused.value.message
    with pytest.raises(ModelError, match="is no tokenizer"):
        open_tokenizer(directory / "tokenizer.json")


def test_no_end_of_a_completion_is_refused(directory: Path) -> None:
    changed(directory, eos_token_id=None)
    (directory / "generation_config.json").unlink()
    with pytest.raises(ModelError, match="names no token that ends"):
        load_eos_ids(directory)
