"""Counter-based randomness: a draw depends on what it is for, never on when it is made."""

from statistics import NormalDist

_MASK = (1 << 64) - 1
_NORMAL = NormalDist()


class Draws:
    """The random draws of one purpose: each is a function of the purpose and a further key."""

    __slots__ = ("_state",)

    def __init__(self, *purpose: int) -> None:
        self._state = _mix(0x9E3779B97F4A7C15, purpose)

    def uniform(self, *key: int) -> float:
        """The uniform number in (0, 1) of a key."""
        return ((_mix(self._state, key) >> 11) + 0.5) * 2.0**-53

    def normal(self, *key: int) -> float:
        """The standard normal number of a key."""
        return _NORMAL.inv_cdf(self.uniform(*key))


def uniform(*key: int) -> float:
    """The uniform number in (0, 1) that is a function of the key."""
    return Draws(*key).uniform()


def _mix(x: int, key: tuple[int, ...]) -> int:
    for part in key:
        x = (x ^ (part & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        x ^= x >> 31
        x = x * 0x94D049BB133111EB & _MASK
        x ^= x >> 29
    return x
