"""What a model of transformers is, from its `config.json`: a record of sizes like the native one's.

Code that comes with a model is never run. Whether the attention of a model can be ours is decided here, from
what its class declares and its configuration says; `skeleton` looks at the calls themselves.
"""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dora_rl.core.errors import ModelError
from dora_rl.model.config import Experts, ModelSizes
from dora_rl.model.hub_config import read_published, to_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PretrainedConfig

ATTENDING = frozenset({"full_attention", "sliding_attention"})
"""Types of layers that only attend: a token sees earlier ones through keys and values, and nothing else."""
_GROWING = frozenset({"dynamic", "longrope"})
"""Rotary positions that change with the length reached, beyond the length a model was first trained on."""
_UNBOUNDED = 2**20
"""Positions of a model whose configuration names no limit, such as one without attention."""


class HfModel(ModelSizes, frozen=True, kw_only=True):
    """The sizes of a model that transformers computes, and where it is."""

    model_type: str
    directory: str
    why_whole: str | None = None
    """Why its sequences are not packed nor its KV paged, in words; None where its attention is ours."""


def read_hf_model(directory: Path) -> HfModel:
    """The model in a directory, as transformers reads it; a ModelError where it cannot."""
    config = hf_config(directory)
    text = config.get_text_config(decoder=True)
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(
            f"{directory} holds quantized weights, which cannot be trained",
            hint="use the unquantized weights",
        )
    if config.is_encoder_decoder:
        raise ModelError(f"{directory} holds a model with an encoder; only causal ones can be trained")
    width, heads = int(text.hidden_size), int(getattr(text, "num_attention_heads", None) or 1)
    return HfModel(
        model_type=str(config.model_type),
        directory=str(directory),
        vocab_size=int(text.vocab_size),
        hidden_size=width,
        intermediate_size=int(_first(text, "intermediate_size", "ffn_dim", "n_inner") or 4 * width),
        num_layers=int(text.num_hidden_layers),
        num_heads=heads,
        num_kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or width // heads),
        max_positions=_max_positions(text),
        is_tied=bool(getattr(text, "tie_word_embeddings", config.tie_word_embeddings)),
        experts=_experts(text),
        dtype=to_dtype(str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")),
        why_whole=_why_whole(config, text),
    )


def hf_config(directory: Path) -> "PretrainedConfig":
    """The configuration in a directory, as transformers reads it."""
    from transformers import AutoConfig

    model_type = read_published(directory / "config.json").get("model_type")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        return config
    except Exception as error:
        # Of an unknown type or odd values the library raises whatever comes up.
        raise ModelError(
            f"transformers does not open a model of type {model_type!r} in {directory}: {_reason(error)}",
            hint="a newer transformers may know it: pip install -U transformers",
        ) from error


@contextmanager
def telling(directory: Path, what: str) -> "Iterator[None]":
    """Turn whatever transformers raises meanwhile into a ModelError that names the directory."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"transformers cannot {what} {directory}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"


def _first(text: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(text, name, None)) is not None), None)


def _max_positions(text: Any) -> int:
    most = int(getattr(text, "max_position_embeddings", None) or _UNBOUNDED)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") not in _GROWING:
        return most
    # Beyond these the frequencies change with the longest sequence of a pass, and keys made before are stale.
    first = rope.get("original_max_position_embeddings") or getattr(
        text, "original_max_position_embeddings", None
    )
    return min(most, int(first)) if first else most


def _experts(text: Any) -> Experts | None:
    num_experts = _first(text, "num_experts", "num_local_experts", "n_routed_experts")
    if not num_experts:
        return None
    return Experts(
        num_experts=int(num_experts),
        num_active=min(int(num_experts), int(_first(text, "num_experts_per_tok", "moe_topk") or 1)),
        intermediate_size=int(_first(text, "moe_intermediate_size", "intermediate_size") or 0),
        is_normalised=True,
    )


def _why_whole(config: Any, text: Any) -> str | None:
    from transformers import AutoModelForCausalLM

    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelError(f"transformers has no causal language model of type {config.model_type!r}")
    made = AutoModelForCausalLM._model_mapping[type(config)]
    own = made[0] if isinstance(made, tuple) else made
    others = sorted(set(getattr(text, "layer_types", None) or ()) - ATTENDING)
    if others:
        return f"it has layers of type {', '.join(others)}"
    if not getattr(own, "_supports_attention_backend", False):
        return "its class does not let others attend for it"
    return None
