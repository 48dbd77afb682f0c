"""Rotary positions: the frequencies of each variant, and the rotation itself.

Frequencies follow the published float32 formulas step by step, because a model was trained on their
rounding: at position 30,000 the last bit of a frequency is two thousandths of a radian. Rotation is
computed in float32 whatever the dtype of queries and keys, and rounded once.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dora_rl.model.config import DefaultRope, LinearRope, Llama3Rope, LongRope, Rope, YarnRope


class Rotation(NamedTuple):
    """Cosine and sine of the angle of each token and frequency: `[tokens, 1, rotary_size / 2]`, float32."""

    cos: Tensor
    sin: Tensor


class Rotary:
    """Angles for positions. No module: casting a model must not cast its frequencies."""

    def __init__(self, rope: Rope, rotary_size: int) -> None:
        self._frequencies = {torch.device("cpu"): inverse_frequencies(rope, rotary_size)}
        self._scale = rope.attention_factor if isinstance(rope, YarnRope | LongRope) else 1.0

    def rotation(self, positions_T: Tensor) -> Rotation:
        """The rotation of tokens at these positions, on the device they are on."""
        angles = positions_T.float()[:, None, None] * self._on(positions_T.device)
        return Rotation(cos=angles.cos() * self._scale, sin=angles.sin() * self._scale)

    def _on(self, device: torch.device) -> Tensor:
        if device not in self._frequencies:
            self._frequencies[device] = self._frequencies[torch.device("cpu")].to(device)
        return self._frequencies[device]


def rotate(heads_THD: Tensor, rotation: Rotation) -> Tensor:
    """Queries or keys turned to their positions: dimension `i` pairs with `i + rotary_size / 2`.

    Dimensions behind those that are rotated stay as they are.
    """
    cos, sin = rotation
    half = cos.shape[-1]
    first, second, *rest = heads_THD.float().split(half, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin, *rest), dim=-1)
    return turned.to(heads_THD.dtype)


def inverse_frequencies(rope: Rope, rotary_size: int) -> Tensor:
    """Radians per position of each pair of dimensions, float32 on the CPU."""
    exponents = torch.arange(0, rotary_size, 2, dtype=torch.float32, device="cpu") / rotary_size
    wavelengths = rope.theta**exponents
    frequencies = 1.0 / wavelengths
    match rope:
        case DefaultRope():
            return frequencies
        case LinearRope():
            return frequencies / rope.factor
        case Llama3Rope():
            return _blend_by_wavelength(rope, frequencies)
        case YarnRope():
            return _blend_by_dimension(rope, wavelengths, rotary_size)
        case LongRope():
            return 1.0 / (torch.tensor(rope.short_factor, device="cpu") * wavelengths)


def _blend_by_wavelength(rope: Llama3Rope, frequencies: Tensor) -> Tensor:
    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0, 1)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies


def _blend_by_dimension(rope: YarnRope, wavelengths: Tensor, head_dim: int) -> Tensor:
    low, high = (
        _turning_dimension(rope, rope.beta_fast, head_dim),
        _turning_dimension(rope, rope.beta_slow, head_dim),
    )
    if rope.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    # A step where the two coincide: the ramp needs some width.
    width = high - low or 0.001
    slowed = ((torch.arange(head_dim // 2, dtype=torch.float32, device="cpu") - low) / width).clamp(0, 1)
    return slowed / (rope.factor * wavelengths) + (1 - slowed) / wavelengths


def _turning_dimension(rope: YarnRope, num_turns: float, head_dim: int) -> float:
    """The dimension, as a real number, that makes `num_turns` turns over the original length."""
    wavelength = rope.original_max_positions / (num_turns * 2 * math.pi)
    return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))
