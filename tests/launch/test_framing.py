"""However a stream is cut, the messages in it are the ones that were sent."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dora_rl.core.record import Record
from dora_rl.launch.framing import Frames, framed


class Note(Record, frozen=True):
    payload: bytes


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(1, 400), min_size=1))
def test_cuts_change_nothing(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(framed(Note(payload=payload)) for payload in payloads)
    frames, found, at, turn = Frames(), list[bytes](), 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += [msgspec.msgpack.decode(p, type=Note).payload for p in frames.feed(stream[at : at + size])]
        at, turn = at + size, turn + 1
    assert found == payloads
    assert frames.is_between


def test_a_part_of_a_message_is_known_to_be_one() -> None:
    frames = Frames()
    frame = framed(Note(payload=b"abc"))
    assert frames.feed(frame[:2]) == []
    assert not frames.is_between
    assert len(frames.feed(frame[2:] + frame[:5])) == 1
    assert not frames.is_between
    assert len(frames.feed(frame[5:])) == 1
    assert frames.is_between
