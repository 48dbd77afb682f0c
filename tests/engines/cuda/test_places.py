"""Memory of versions that stays where graphs look for it."""

import torch

from dora_rl.engines.native.cuda.places import Places
from dora_rl.model.decoder import Decoder
from dora_rl.model.tiny import seeded_decoder, tiny_config


def made(seed: int) -> Decoder:
    return seeded_decoder(tiny_config(32), seed).requires_grad_(False)


def addresses(decoder: Decoder) -> list[int]:
    return [parameter.data_ptr() for parameter in decoder.parameters()]


def are_alike(one: Decoder, other: Decoder) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


def test_a_version_moves_to_where_one_left() -> None:
    places, first, second = Places(), made(1), made(2)
    place = places.settle(1, first)
    home = addresses(first)
    places.leave(1)
    assert places.settle(2, second) == place
    assert addresses(second) == home
    assert are_alike(second, made(2))


def test_a_copy_is_made_in_a_free_place_and_settles_there() -> None:
    places, base, gone = Places(), made(1), made(2)
    places.settle(1, base)
    free = places.settle(2, gone)
    home = addresses(gone)
    places.leave(2)
    copied = places.copied(base)
    assert (addresses(copied), are_alike(copied, base)) == (home, True)
    next(copied.parameters()).fill_(0.0)
    assert places.settle(3, copied) == free
    assert are_alike(base, made(1))


def test_a_copy_is_made_in_new_memory_where_no_place_is_free() -> None:
    places, base = Places(), made(1)
    places.settle(1, base)
    copied = places.copied(base)
    assert not set(addresses(copied)) & set(addresses(base))
    assert are_alike(copied, base)
    assert places.settle(2, copied) != places.place_of(1)
