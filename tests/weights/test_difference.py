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
from dora_rl.weights.difference import StripSteps, changes_of, decoded, encode_all, steps_between
from dora_rl.weights.errors import WrongBase
from dora_rl.weights.positions import PositionCode, are_ascending, decode, encode
from dora_rl.weights.strips import Tensors, strips_in

from .versions import changed, random_tensor

DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
SEEDS = st.integers(0, 2**32)
DENSITIES = st.sampled_from([0.0, 0.001, 0.02, 0.2, 0.5, 0.9, 1.0]) | st.floats(0, 1)
SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)


def chain_of(versions: list[Tensors]) -> list[list[StripSteps]]:
    """For each strip, the steps from version to version."""
    return [
        [steps_between(strip.strung(old), strip.strung(new)) for old, new in pairwise(versions)]
        for strip in strips_in(versions[0])
    ]


def led_on(base: Tensors, chains: list[list[StripSteps]]) -> Tensors:
    """A copy of the base with all steps taken."""
    reached = {name: tensor.clone() for name, tensor in base.items()}
    for name, change in changes_of(strips_in(base), chains, base).items():
        patterns(reached[name])[change.indices_N] = patterns(change.values_N)
    return reached


def same(a: Tensors, b: Tensors) -> bool:
    return all(torch.equal(patterns(a[name]), patterns(b[name])) for name in a)


@given(dtype=DTYPES, shapes=st.lists(SHAPES, min_size=1, max_size=4), density=DENSITIES, seed=SEEDS)
def test_what_is_encoded_leads_from_old_to_new(
    dtype: torch.dtype, shapes: list[tuple[int, ...]], density: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    old = {str(place): random_tensor(shape, dtype, generator) for place, shape in enumerate(shapes)}
    new = {name: changed(tensor, density, generator) for name, tensor in old.items()}
    (strip,) = strips = strips_in(old)
    (coded,) = encode_all(strips, [strip.strung(old)], new)
    steps = decoded(coded, strip.size, PATTERN_OF[dtype], torch.tensor(coded.base_sum))
    delta = changes_of(strips, [[steps]], old)
    differ = {name: (patterns(old[name]) != patterns(new[name])).nonzero().squeeze(1) for name in old}
    assert coded.count == sum(map(len, differ.values()))
    assert delta.keys() == {name for name, places in differ.items() if len(places)}
    for name, change in delta.items():
        assert torch.equal(change.indices_N, differ[name])
        assert torch.equal(patterns(change.values_N), patterns(new[name])[change.indices_N])


@given(dtype=DTYPES, densities=st.lists(DENSITIES, min_size=1, max_size=4), seed=SEEDS)
def test_steps_compose(dtype: torch.dtype, densities: list[float], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (17, 11), "b": (3,), "c": (5, 7)}
    versions = [{name: random_tensor(shape, dtype, generator) for name, shape in shapes.items()}]
    for density in densities:
        versions.append({name: changed(each, density, generator) for name, each in versions[-1].items()})
    assert same(led_on(versions[0], chain_of(versions)), versions[-1])


def test_strips_end_where_the_dtype_changes_and_before_they_grow_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dora_rl.weights.strips._MOST_VALUES", 10)
    sizes = {"a": 4, "b": 6, "c": 1, "d": 30, "e": 2, "f": 3, "g": 0}
    tensors = {name: torch.zeros(size, dtype=torch.float16) for name, size in sizes.items()}
    tensors["f"] = tensors["f"].float()
    assert [strip.names for strip in strips_in(tensors)] == [
        ("a", "b"), ("c",), ("d",), ("e",), ("f",), ("g",)
    ]  # fmt: skip


def test_signs_of_zero_and_payloads_of_nan_survive() -> None:
    old = torch.tensor([0.0, -0.0, math.nan, math.inf, 1.0])
    new = torch.tensor([-0.0, 0.0, math.nan, -math.inf, math.nan])
    patterns(new)[2] += 5
    ((steps,),) = chains = chain_of([{"x": old}, {"x": new}])
    assert len(steps.indices_N) == 5
    assert same(led_on({"x": old}, chains), {"x": new})


@given(seed=SEEDS, place=st.integers(0, 63))
def test_steps_refuse_another_base(seed: int, place: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    old = random_tensor((64,), torch.bfloat16, generator)
    new = old.clone()
    patterns(new).add_(1)
    other = old.clone()
    patterns(other)[place] += 1
    chains = chain_of([{"x": old}, {"x": new}])
    with pytest.raises(WrongBase):
        changes_of(strips_in({"x": other}), chains, {"x": other})
    assert same(led_on({"x": old}, chains), {"x": new})


@given(size=st.integers(1, 5000), seed=SEEDS, density=DENSITIES)
def test_positions_take_the_bytes_their_shape_says(size: int, seed: int, density: float) -> None:
    draw = torch.rand(size, generator=torch.Generator().manual_seed(seed))
    positions = (draw < density).nonzero().squeeze(1)
    shape = PositionCode(size=size, count=len(positions))
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
    shape = PositionCode(size=max(count, size), count=count)
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
    shape = PositionCode(size=64, count=2)
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
