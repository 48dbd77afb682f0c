"""The key of a random stream: what makes a draw the same wherever, and however often, it is made.

Owns the key's fields and their ranges; how numbers are drawn from it is the sampler's.
"""

from dora_rl.core.errors import ConfigError
from dora_rl.core.record import Record

_WORD = 2**32


class StreamKey(Record, frozen=True):
    """The key of a random stream; with a token's position in its sequence it is the key of one draw."""

    seed: int
    epoch: int = 0
    row: int = 0
    member: int = 0
    attempt: int = 0
    branch: int = 0
    """The branch of an episode; what is no episode, and an episode's first branch, is 0."""

    def __post_init__(self) -> None:
        words = (self.epoch, self.row, self.member, self.attempt, self.branch)
        if not (0 <= self.seed < _WORD**2 and all(0 <= word < _WORD for word in words)):
            raise ConfigError(f"{self} does not fit 64 bits of seed and 32 of each of the others")
