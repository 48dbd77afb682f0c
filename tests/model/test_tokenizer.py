"""Tokenizers come from local files, know what ends a completion, and lose no character."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.errors import ModelError
from dora_rl.model.characters import ALPHABET, END, character_tokenizer
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer, save_tokenizer

MESSAGES = [{"role": "user", "content": "1+1=?"}, {"role": "assistant", "content": "2"}]
CHARACTERS = character_tokenizer()


@given(st.text(ALPHABET))
def test_every_character_is_a_token_and_comes_back(text: str) -> None:
    ids = CHARACTERS(text).input_ids
    assert len(ids) == len(text)
    assert CHARACTERS.decode(ids) == text


def test_a_chat_is_its_roles_and_words() -> None:
    text = CHARACTERS.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>1+1=?<|end|><|assistant|>2<|end|><|assistant|>"
    ids = CHARACTERS(text).input_ids
    assert len(ids) == len("1+1=?2") + 5
    assert CHARACTERS.decode(ids, skip_special_tokens=True) == "1+1=?2"


def test_a_character_outside_the_alphabet_is_unknown_not_lost() -> None:
    assert CHARACTERS("ü").input_ids == [CHARACTERS.unk_token_id]


def test_a_saved_tokenizer_opens_as_the_same(tmp_path: Path) -> None:
    save_tokenizer(CHARACTERS, tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.get_vocab() == CHARACTERS.get_vocab()
    assert again.eos_token == END
    for tokenize in (False, True):
        ours, theirs = (t.apply_chat_template(MESSAGES, tokenize=tokenize) for t in (CHARACTERS, again))
        assert ours == theirs
    assert again.decode(again("a  b .\n c").input_ids) == "a  b .\n c"


def test_without_files_there_is_no_tokenizer(tmp_path: Path) -> None:
    # A model of a known kind: transformers would make a tokenizer without words.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(ModelError, match=r"no tokenizer can be loaded .* neither tokenizer.json") as raised:
        load_tokenizer(tmp_path)
    assert "copy tokenizer.json" in str(raised.value.hint)
    with pytest.raises(ModelError, match="is not a directory"):
        load_tokenizer(tmp_path / "gpt2")


def test_code_that_comes_with_a_tokenizer_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "evil.py").write_text("raise SystemExit('was run')")
    settings = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ModelError):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("generation", "model", "expected"),
    [(7, 1, {7}), ([7, 8], 1, {7, 8}), (None, 1, {1}), (None, [1, 2], {1, 2})],
)
def test_generation_defaults_say_what_ends_a_completion(
    tmp_path: Path, generation: object, model: object, expected: set[int]
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": model}))
    assert load_eos_ids(tmp_path) == expected


def test_without_an_end_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="names no token that ends"):
        load_eos_ids(tmp_path)
    (tmp_path / "generation_config.json").write_text("nonsense")
    with pytest.raises(ModelError, match="cannot be read"):
        load_eos_ids(tmp_path)
