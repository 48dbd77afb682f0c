"""Memory at fixed addresses for the weights of each resident version.

A captured graph reads weights where they were when it was captured. So a version moves into a place, and the
graphs of a place serve every version that ever lives there.
"""

from copy import deepcopy

import torch
from torch import Tensor

from dora_rl.model.decoder import Decoder


class Places:
    """Fixed memory for weights: as many places as versions were ever resident at once."""

    def __init__(self) -> None:
        self._tenants: list[Decoder] = []
        """The decoder that is or was last in each place; its tensors are the place."""
        self._free: list[int] = []
        self._by_version: dict[int, int] = {}

    def place_of(self, version: int) -> int:
        """The place of a resident version."""
        return self._by_version[version]

    def decoder_at(self, place: int) -> Decoder:
        """The decoder that is, or was last, in a place."""
        return self._tenants[place]

    def any_decoder(self) -> Decoder | None:
        """The decoder of some resident version; None where there is none."""
        place = next(iter(self._by_version.values()), None)
        return None if place is None else self._tenants[place]

    def copied(self, decoder: Decoder) -> Decoder:
        """The same weights in a free place, which is free until they settle; else in new memory.

        A decoder is hundreds of objects: to make another takes the host longer than the device takes to copy.
        """
        if not self._free:
            return deepcopy(decoder)
        tenant = self._tenants[self._free[0]]
        torch._foreach_copy_(_memory(tenant), _memory(decoder))
        return tenant

    def settle(self, version: int, decoder: Decoder) -> int:
        """Give a version a place.

        Where it is if that is a free place (it changed its name, or was copied there), else a free one, else
        a new one.
        """
        place = next((each for each in self._free if self._tenants[each] is decoder), None)
        if place is None and self._free:
            place = self._free[0]
            _move(decoder, self._tenants[place])
            self._tenants[place] = decoder
        if place is None:
            place = len(self._tenants)
            self._tenants.append(decoder)
        else:
            self._free.remove(place)
        self._by_version[version] = place
        return place

    def leave(self, version: int) -> None:
        """Free the place of a version."""
        self._free.append(self._by_version.pop(version))


def _move(decoder: Decoder, tenant: Decoder) -> None:
    places = _memory(tenant)
    torch._foreach_copy_(places, _memory(decoder))
    for parameter, place in zip(decoder.parameters(), places, strict=True):
        parameter.data = place


def _memory(decoder: Decoder) -> list[Tensor]:
    return [parameter.data for parameter in decoder.parameters()]
