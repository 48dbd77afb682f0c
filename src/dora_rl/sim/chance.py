"""Counter-based randomness: a draw depends on what it is for, never on when it is made."""

from statistics import NormalDist

_MASK = (1 << 64) - 1
_NORMAL = NormalDist()


def uniform(*key: int) -> float:
    """A number in (0, 1) that is a function of the key."""
    x = 0x9E3779B97F4A7C15
    for part in key:
        x = (x ^ (part & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        x ^= x >> 31
        x = x * 0x94D049BB133111EB & _MASK
        x ^= x >> 29
    return ((x >> 11) + 0.5) * 2.0**-53


def normal(*key: int) -> float:
    """A standard normal number that is a function of the key."""
    return _NORMAL.inv_cdf(uniform(*key))
