"""Rotary positions as a `config.json` writes them, to and from the Rope records.

Two spellings exist: `rope_parameters` with the base inside (transformers 5), and `rope_scaling` beside
`rope_theta` (transformers 4). One dict of parameters, base included, is what both come down to.
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from dora_rl.core.errors import ModelError, NotNative
from dora_rl.model.config import DefaultRope, LinearRope, Llama3Rope, LongRope, Rope, YarnRope
from dora_rl.model.published import PublishedConfig

Parameters = dict[str, Any]


class _Default(Struct, frozen=True):
    """Keys of unscaled rotary positions in a `config.json`."""

    rope_theta: float


class _Linear(_Default, frozen=True):
    """Keys of linearly scaled rotary positions in a `config.json`."""

    factor: float


class _Llama3(_Linear, frozen=True):
    """Keys of Llama 3's rotary positions in a `config.json`."""

    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class _Yarn(_Linear, frozen=True):
    """Keys of YaRN's rotary positions in a `config.json`."""

    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class _Long(_Default, frozen=True):
    """Keys of LongRoPE's rotary positions in a `config.json`."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    max_position_embeddings: int
    factor: float | None = None
    attention_factor: float | None = None


def published_rope(given: PublishedConfig, layer_type: str = "full_attention") -> Parameters:
    """The parameters of layers of a type, in whichever spelling they are given, as one dict."""
    nested = (given.rope_parameters or {}).get(layer_type)
    if layer_type == "full_attention":
        parameters = dict(given.rope_scaling or nested or given.rope_parameters or {})
        parameters.setdefault("rope_theta", given.rope_theta or 10_000.0)
    else:
        parameters = dict(nested or {})
        parameters.setdefault("rope_theta", given.rope_local_base_freq or 10_000.0)
    if given.original_max_position_embeddings:
        parameters["original_max_position_embeddings"] = given.original_max_position_embeddings
    parameters.setdefault("original_max_position_embeddings", given.max_position_embeddings)
    return parameters | {"max_position_embeddings": given.max_position_embeddings}


def rotary_part(given: PublishedConfig) -> float:
    """The part of each head that is rotated."""
    part = published_rope(given).get("partial_rotary_factor", given.partial_rotary_factor)
    return 1.0 if part is None else float(part)


def longest(rope: Rope, published: int) -> int:
    """Number of positions that the decoder computes, of a model published with so many."""
    return min(published, rope.original_max_positions) if isinstance(rope, LongRope) else published


def published_length(rope: Rope, max_positions: int) -> int:
    """Number of positions that the model is published with."""
    return rope.published_max_positions if isinstance(rope, LongRope) else max_positions


def read_rope(parameters: Parameters) -> Rope:
    """The record of the parameters, `rope_theta` and the original length among them."""
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "dynamic":
        # Its frequencies depend on the length reached, so keys in the cache would have to be rotated again.
        raise NotNative(
            "rotary positions of type 'dynamic' are not supported: they change with the length of a sequence",
            hint="'yarn' reaches the same lengths with fixed frequencies",
        )
    if kind not in _READERS:
        hint = f"supported: {', '.join(_READERS)}"
        raise NotNative(f"rotary positions of type {kind!r} are not supported", hint=hint)
    try:
        return _READERS[kind](parameters)
    except msgspec.ValidationError as error:
        raise ModelError(f"rotary positions of type {kind!r} are incomplete: {error}") from error


def write_rope(rope: Rope) -> Parameters:
    """The keys of a `config.json` that hold this record, in both spellings."""
    return {"rope_parameters": as_parameters(rope), "rope_theta": rope.theta, "rope_scaling": _scaling(rope)}


def as_parameters(rope: Rope) -> Parameters:
    """The record as one dict, base included."""
    return {"rope_type": "default", **(_scaling(rope) or {}), "rope_theta": rope.theta}


def _default(parameters: Parameters) -> Rope:
    return DefaultRope(theta=msgspec.convert(parameters, _Default).rope_theta)


def _linear(parameters: Parameters) -> Rope:
    given = msgspec.convert(parameters, _Linear)
    return LinearRope(theta=given.rope_theta, factor=given.factor)


def _llama3(parameters: Parameters) -> Rope:
    given = msgspec.convert(parameters, _Llama3)
    return Llama3Rope(
        theta=given.rope_theta,
        factor=given.factor,
        low_freq_factor=given.low_freq_factor,
        high_freq_factor=given.high_freq_factor,
        original_max_positions=given.original_max_position_embeddings,
    )


def _yarn(parameters: Parameters) -> Rope:
    given = msgspec.convert(parameters, _Yarn)
    return YarnRope(
        theta=given.rope_theta,
        factor=given.factor,
        attention_factor=_attention_factor(given),
        beta_fast=given.beta_fast or 32.0,
        beta_slow=given.beta_slow or 1.0,
        is_truncated=given.truncate,
        original_max_positions=given.original_max_position_embeddings,
    )


def _long(parameters: Parameters) -> Rope:
    given = msgspec.convert(parameters, _Long)
    return LongRope(
        theta=given.rope_theta,
        attention_factor=_sharpened(given),
        short_factor=given.short_factor,
        long_factor=given.long_factor,
        original_max_positions=given.original_max_position_embeddings,
        published_max_positions=given.max_position_embeddings,
    )


def _sharpened(given: _Long) -> float:
    if given.attention_factor is not None:
        return given.attention_factor
    original = given.original_max_position_embeddings
    factor = given.factor or given.max_position_embeddings / original
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0


_READERS: dict[str, Callable[[Parameters], Rope]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _long,
    "su": _long,
}


def _attention_factor(given: _Yarn) -> float:
    if given.attention_factor is not None:
        return given.attention_factor
    if given.mscale and given.mscale_all_dim:
        return _mscale(given.factor, given.mscale) / _mscale(given.factor, given.mscale_all_dim)
    return _mscale(given.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _scaling(rope: Rope) -> Parameters | None:
    match rope:
        case DefaultRope():
            return None
        case LinearRope():
            return {"rope_type": "linear", "factor": rope.factor}
        case LongRope():
            return {
                "rope_type": "longrope",
                "short_factor": list(rope.short_factor),
                "long_factor": list(rope.long_factor),
                "attention_factor": rope.attention_factor,
                "original_max_position_embeddings": rope.original_max_positions,
            }
        case Llama3Rope():
            return {
                "rope_type": "llama3",
                "factor": rope.factor,
                "low_freq_factor": rope.low_freq_factor,
                "high_freq_factor": rope.high_freq_factor,
                "original_max_position_embeddings": rope.original_max_positions,
            }
        case YarnRope():
            return {
                "rope_type": "yarn",
                "factor": rope.factor,
                "attention_factor": rope.attention_factor,
                "beta_fast": rope.beta_fast,
                "beta_slow": rope.beta_slow,
                "truncate": rope.is_truncated,
                "original_max_position_embeddings": rope.original_max_positions,
            }
