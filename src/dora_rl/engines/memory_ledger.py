"""The one ledger of memory: what is reserved, for what, and what is left.

Owns no memory and moves none: whoever allocates reserves first, and a reservation beyond the limit is an
error with the figures in it, before anything is allocated.
"""

from typing import Literal

from dora_rl.engines.errors import OutOfMemory

Place = Literal["device", "host"]


class MemoryLedger:
    """Reservations in bytes by name, for the device and for the host memory beside it."""

    def __init__(self, *, device_bytes: int, host_bytes: int) -> None:
        self._limits: dict[Place, int] = {"device": device_bytes, "host": host_bytes}
        self._reserved: dict[tuple[Place, str], int] = {}

    def reserve(self, place: Place, name: str, num_bytes: int) -> None:
        """Set `num_bytes` aside under a name that is not in use."""
        assert (place, name) not in self._reserved, f"{name} is reserved already"
        if num_bytes > self.free(place):
            raise OutOfMemory(
                f"{name} needs {_figure(num_bytes)} of {place} memory; {_figure(self.free(place))} are free",
                hint=f"reserved so far:\n{self}",
            )
        self._reserved[place, name] = num_bytes

    def release(self, place: Place, name: str) -> None:
        """Give back what was reserved under this name."""
        del self._reserved[place, name]

    def rename(self, place: Place, name: str, new_name: str) -> None:
        """Let a reservation stand for something else of the same size."""
        assert (place, new_name) not in self._reserved, f"{new_name} is reserved already"
        self._reserved[place, new_name] = self._reserved.pop((place, name))

    def used(self, place: Place) -> int:
        """Bytes reserved so far."""
        return sum(size for (where, _), size in self._reserved.items() if where == place)

    def free(self, place: Place) -> int:
        """Bytes that may still be reserved."""
        return self._limits[place] - self.used(place)

    def __str__(self) -> str:
        rows = [f"{place:<7}{name:<24}{_figure(size):>12}" for (place, name), size in self._reserved.items()]
        rows += [f"{place:<7}{'free':<24}{_figure(self.free(place)):>12}" for place in self._limits]
        return "\n".join(sorted(rows))


def _figure(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
