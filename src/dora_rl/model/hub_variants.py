"""What single families say in a `config.json` and others do not, to and from the facts of a ModelConfig.

The only place that asks for a family by name, besides its row in `families`.
"""

import math
from typing import Any

from dora_rl.core.errors import ModelError, NotNative
from dora_rl.model.config import DefaultRope, LongRope, ModelConfig
from dora_rl.model.families import FAMILIES, Activation, Family
from dora_rl.model.hub_rope import as_parameters, published_rope, read_rope, rotary_part
from dora_rl.model.published import PublishedConfig

ACTIVATIONS: dict[Activation, tuple[str, ...]] = {
    "silu": ("silu", "swish"),
    "gelu_tanh": ("gelu_pytorch_tanh",),
}
"""Published names of the activations, the usual one first."""
_SLIDING, _FULL = "sliding_attention", "full_attention"


def read_variant(family: Family, given: PublishedConfig) -> dict[str, Any]:
    """Fields of the ModelConfig that the family alone has."""
    fields = _windows(family, given)
    match family:
        case "smollm3":
            fields["unrotated_layers"] = _unrotated(given)
        case "granite":
            fields |= {
                "attention_scale": given.attention_multiplier,
                "embedding_scale": given.embedding_multiplier,
                "residual_scale": given.residual_multiplier,
                "logits_divisor": given.logits_scaling,
            }
        case "phi3":
            if not isinstance(read_rope(published_rope(given)), DefaultRope | LongRope):
                raise NotNative("Phi-3's rotary positions are of type 'default' or 'longrope'")
            head_dim, part = (
                given.head_dim or given.hidden_size // given.num_attention_heads,
                rotary_part(given),
            )
            fields["rotary_size"] = None if part == 1.0 else int(head_dim * part)
        case "gemma3_text":
            assert given.query_pre_attn_scalar is not None, "the family has a default"
            fields |= {
                "attention_scale": given.query_pre_attn_scalar**-0.5,
                "embedding_scale": given.hidden_size**0.5,
                "sliding_rope": read_rope(published_rope(given, _SLIDING)),
            }
    return fields


def write_variant(config: ModelConfig) -> dict[str, Any]:
    """Keys of the `config.json` that the family alone has, or has otherwise."""
    keys: dict[str, Any] = {"hidden_act": ACTIVATIONS[config.facts.activation][0]}
    if config.facts.windows != "none":
        keys["sliding_window"] = config.window
    layers = range(config.num_layers)
    match config.family:
        case "smollm3":
            keys["no_rope_layers"] = [int(layer not in config.unrotated_layers) for layer in layers]
        case "granite":
            keys |= {
                "attention_multiplier": config.attention_scale,
                "embedding_multiplier": config.embedding_scale,
                "residual_multiplier": config.residual_scale,
                "logits_scaling": config.logits_divisor,
            }
        case "phi3":
            keys |= _phi3_rope(config)
        case "gemma3_text":
            assert config.attention_scale is not None, "the family has one"
            assert config.sliding_rope is not None, "the family has one"
            is_sliding = [layer in config.sliding_layers for layer in layers]
            keys |= {
                "hidden_activation": keys["hidden_act"],
                "query_pre_attn_scalar": round(config.attention_scale**-2),
                "layer_types": [_SLIDING if slides else _FULL for slides in is_sliding],
                "rope_local_base_freq": config.sliding_rope.theta,
                "rope_parameters": {
                    _FULL: as_parameters(config.rope),
                    _SLIDING: as_parameters(config.sliding_rope),
                },
            }
    return keys


def _windows(family: Family, given: PublishedConfig) -> dict[str, Any]:
    layers = range(given.num_hidden_layers)
    if FAMILIES[family].windows == "none" or given.sliding_window is None:
        return {}
    if FAMILIES[family].windows == "everywhere":
        return {"window": given.sliding_window, "sliding_layers": tuple(layers)}
    if given.layer_types is not None:
        types = given.layer_types
        if len(types) != len(layers) or not {_SLIDING, _FULL}.issuperset(types):
            raise ModelError(
                f"layer_types names {len(types)} layers of types {', '.join(sorted(set(types)))}"
            )
    else:
        pattern = given.sliding_window_pattern or 1
        types = tuple(_SLIDING if (layer + 1) % pattern else _FULL for layer in layers)
    sliding = tuple(layer for layer in layers if types[layer] == _SLIDING)
    return {"window": given.sliding_window, "sliding_layers": sliding}


def _unrotated(given: PublishedConfig) -> tuple[int, ...]:
    layers = range(given.num_hidden_layers)
    interval = given.no_rope_layer_interval
    if given.no_rope_layers is not None:
        if len(given.no_rope_layers) < len(layers):
            raise ModelError(f"no_rope_layers has {len(given.no_rope_layers)} of {len(layers)} layers")
        return tuple(layer for layer in layers if not given.no_rope_layers[layer])
    if interval is None or interval < 1:
        raise ModelError(f"no_rope_layer_interval cannot be {interval}")
    return tuple(layer for layer in layers if (layer + 1) % interval == 0)


def _phi3_rope(config: ModelConfig) -> dict[str, Any]:
    part = 1.0 if config.rotary_size is None else config.rotary_size / config.head_dim
    if int(config.head_dim * part) != (config.rotary_size or config.head_dim):
        # Readers round the product down, and the quotient was rounded down already.
        part = math.nextafter(part, 1.0)
    parameters = {**as_parameters(config.rope), "partial_rotary_factor": part}
    keys = {"rope_parameters": parameters, "partial_rotary_factor": part}
    if isinstance(config.rope, LongRope):
        keys["original_max_position_embeddings"] = config.rope.original_max_positions
    return keys
