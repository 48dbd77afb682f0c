"""A difference leads from any tensor to any other, bit for bit, and only from the one it was made against."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.weights.bits import (
    PATTERN_OF,
    from_planes,
    from_zigzag,
    num_packed,
    pack_bits,
    patterns,
    to_planes,
    to_zigzag,
    unpack_bits,
)
from dora_rl.weights.difference import apply, change_of, decoded, encode_all, steps_between
from dora_rl.weights.errors import WrongBase
from dora_rl.weights.positions import Shape, are_ascending, decode, encode

from .versions import changed, random_tensor

DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
SEEDS = st.integers(0, 2**32)
DENSITIES = st.sampled_from([0.0, 0.001, 0.02, 0.2, 0.5, 0.9, 1.0]) | st.floats(0, 1)
SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)


@given(dtype=DTYPES, shape=SHAPES, density=DENSITIES, seed=SEEDS)
def test_what_is_encoded_leads_from_old_to_new(
    dtype: torch.dtype, shape: tuple[int, ...], density: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    old = random_tensor(shape, dtype, generator)
    new = changed(old, density, generator)
    coded = encode_all({"x": old}, {"x": new})["x"]
    steps = decoded(coded, old.numel(), PATTERN_OF[dtype], torch.tensor(coded.base_sum))
    change, do_fit = change_of([steps], old)
    assert do_fit
    assert coded.count == int((patterns(old) != patterns(new)).sum())
    assert torch.equal(change.indices_N, (patterns(old) != patterns(new)).nonzero().squeeze(1))
    assert torch.equal(patterns(change.values_N), patterns(new)[change.indices_N])
    apply(steps, old)
    assert torch.equal(patterns(old), patterns(new))


@given(dtype=DTYPES, densities=st.lists(DENSITIES, min_size=1, max_size=4), seed=SEEDS)
def test_steps_compose(dtype: torch.dtype, densities: list[float], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    versions = [random_tensor((17, 11), dtype, generator)]
    for density in densities:
        versions.append(changed(versions[-1], density, generator))
    chain = [steps_between(old, new) for old, new in pairwise(versions)]
    change, do_fit = change_of(chain, versions[0])
    assert do_fit
    patterns(versions[0])[change.indices_N] = patterns(change.values_N)
    assert torch.equal(patterns(versions[0]), patterns(versions[-1]))


def test_signs_of_zero_and_payloads_of_nan_survive() -> None:
    old = torch.tensor([0.0, -0.0, math.nan, math.inf, 1.0])
    new = torch.tensor([-0.0, 0.0, math.nan, -math.inf, math.nan])
    patterns(new)[2] += 5
    steps = steps_between(old, new)
    assert len(steps.indices_N) == 5
    apply(steps, old)
    assert torch.equal(patterns(old), patterns(new))


@given(seed=SEEDS, place=st.integers(0, 63))
def test_steps_refuse_another_base(seed: int, place: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    old = random_tensor((64,), torch.bfloat16, generator)
    new = old.clone()
    patterns(new).add_(1)
    other = old.clone()
    patterns(other)[place] += 1
    untouched = other.clone()
    with pytest.raises(WrongBase):
        apply(steps_between(old, new), other)
    assert torch.equal(patterns(other), patterns(untouched))
    _, do_fit = change_of([steps_between(old, new)], other)
    assert not do_fit


@given(size=st.integers(1, 5000), seed=SEEDS, density=DENSITIES)
def test_positions_take_the_bytes_their_shape_says(size: int, seed: int, density: float) -> None:
    draw = torch.rand(size, generator=torch.Generator().manual_seed(seed))
    positions = (draw < density).nonzero().squeeze(1)
    shape = Shape(size=size, count=len(positions))
    data = encode(positions, size)
    assert len(data) == shape.num_bytes
    assert len(data) <= num_packed(size)
    assert torch.equal(decode(data, shape), positions)


def test_positions_stay_near_the_entropy() -> None:
    size, share = 400_000, 0.02
    draw = torch.rand(size, generator=torch.Generator().manual_seed(0))
    positions = (draw < share).nonzero().squeeze(1)
    p = len(positions) / size
    entropy_bits = size * -(p * math.log2(p) + (1 - p) * math.log2(1 - p))
    assert 8 * len(encode(positions, size)) < 1.08 * entropy_bits


@given(count=st.integers(1, 200), size=st.integers(1, 3000), seed=SEEDS)
def test_arbitrary_bytes_are_positions_or_an_error(count: int, size: int, seed: int) -> None:
    shape = Shape(size=max(count, size), count=count)
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 256, (shape.num_bytes,), generator=generator, dtype=torch.uint8)
    try:
        positions = decode(data, shape)
    except ValueError:
        return
    assert len(positions) == count
    if not are_ascending(positions, shape.size):
        return
    assert positions.tolist() == sorted(set(positions.tolist()))
    assert int(positions[-1]) < shape.size


def test_positions_out_of_order_or_out_of_range_are_found_out() -> None:
    shape = Shape(size=64, count=2)
    data = encode(torch.tensor([3, 5]), 64)
    assert shape.code == "sorted"
    swapped = data.clone()
    # Both have the same high part; each plane holds one low bit of either.
    low = swapped[: shape.low_bits]
    low.copy_(((low & 1) << 1) | (low >> 1))
    beyond = encode(torch.tensor([3, 63]), 64)
    beyond[shape.low_bits :] = pack_bits(torch.tensor([True, False, False, True, False]))
    assert are_ascending(decode(data, shape), 64)
    for wrong in (swapped, beyond):
        assert not are_ascending(decode(wrong, shape), 64)


@given(bits=st.lists(st.booleans(), max_size=70))
def test_packed_bits_unpack(bits: list[bool]) -> None:
    packed = pack_bits(torch.tensor(bits, dtype=torch.bool))
    assert len(packed) == num_packed(len(bits))
    assert unpack_bits(packed, len(bits)).tolist() == bits


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_zigzag_and_planes_take_every_extreme(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    steps = torch.tensor([0, -1, 1, -2, 2, limits.min, limits.max, limits.min + 1], dtype=dtype)
    assert to_zigzag(steps)[:5].tolist() == [0, 1, 2, 3, 4]
    planes = to_planes(to_zigzag(steps))
    assert planes.shape == (dtype.itemsize, len(steps))
    assert torch.equal(from_zigzag(from_planes(planes, dtype)), steps)
