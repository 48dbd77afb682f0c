"""What an instance says about itself when it joins: its size, place and abilities.

Control trusts these numbers and nothing else about the hardware.
"""

from dora_rl.core.record import Record

GROWTH_TOKENS = 64
"""Tokens of KV kept free for each running request: all of them grow while a new one starts."""


class InstanceSpec(Record, frozen=True):
    """Size, place and abilities of one rollout engine replica, on one or several devices."""

    slots: int
    """Most requests that may decode at once."""
    kv_tokens: int
    """Tokens of KV that fit beside one resident version."""
    version_kv_tokens: int = 0
    """Tokens of KV that each further resident version displaces."""
    max_versions: int = 1
    """Most versions that may be resident at once."""
    gpus: int = 1
    """GPUs of the instance."""
    node: int = 0
    """Number of the machine the instance is on: within one, KV travels over the fast link."""
    elastic: bool = False
    """Whether its devices generate until a batch is ready, and then train."""
    moves_kv: bool = True
    """Whether a live request can be exported with its KV; if not, it is prefilled again."""
    continues: bool = True
    """Whether a request can start from tokens generated elsewhere; if not, it starts again."""
    parks: bool = True
    """Whether a request's KV moves to host memory on command; if not, the engine preempts by itself."""

    host_kv_tokens: int = 0
    """Tokens of KV of requests between turns that host memory takes on command; 0: it parks none."""

    def kv_capacity(self, num_versions: int) -> int:
        """Tokens of KV that fit beside `num_versions` resident versions."""
        if num_versions < 2:
            return self.kv_tokens
        return self.kv_tokens - (num_versions - 1) * self.version_kv_tokens

    @property
    def versions_that_fit(self) -> int:
        """How many versions may be resident while a tenth of the KV remains."""
        count = 1
        while count < self.max_versions and self.kv_capacity(count + 1) >= 0.1 * self.kv_tokens:
            count += 1
        return count
