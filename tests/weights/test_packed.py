"""Sections are what they were, however many pieces they were compressed in."""

import random

import pytest

from dora_rl.weights.packed_sections import Strategy, pack_all, unpack

PIECE = 1 << 18


def skewed(count: int) -> bytes:
    """Bytes that deflate shrinks."""
    return bytes(random.Random(count).choices((0, 1, 2, 200), weights=(60, 30, 9, 1), k=count))


@pytest.mark.parametrize("count", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 17])
@pytest.mark.parametrize("strategy", ["none", "huffman", "runs"])
def test_a_section_is_what_it_was(count: int, strategy: Strategy) -> None:
    data = skewed(count)
    ((section, stored),) = pack_all([(data, strategy)])
    assert section.problem(count) is None
    assert bytes(unpack(section, stored)) == data
    is_coded = strategy != "none" and count > 1
    assert (section.coding, len(stored) < count) == (("deflate", True) if is_coded else ("raw", False))


def test_what_does_not_shrink_is_stored_as_it_is() -> None:
    noise = random.Random(0).randbytes(2 * PIECE)
    ((section, stored),) = pack_all([(noise, "huffman")])
    assert (section.coding, stored) == ("raw", noise)


def test_sections_stay_in_order() -> None:
    parts: list[tuple[bytes, Strategy]] = [(skewed(count), "huffman") for count in (5 * PIECE, 10, PIECE)]
    packed = pack_all(parts)
    assert [bytes(unpack(*each)) for each in packed] == [data for data, _ in parts]


def test_a_stream_that_lacks_a_piece_is_refused() -> None:
    ((section, stored),) = pack_all([(skewed(2 * PIECE), "huffman")])
    with pytest.raises(ValueError, match="checksum"):
        unpack(section, stored[:-1])
