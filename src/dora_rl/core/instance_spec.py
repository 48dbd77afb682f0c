"""What an instance says about itself when it joins: its size, place and abilities.

Control trusts these numbers and nothing else about the hardware.
"""

from dora_rl.core.record import Record

GROWTH_TOKENS = 64
"""Tokens of KV kept free for each running request: all of them grow while a new one starts."""


class InstanceSpec(Record, frozen=True):
    """One rollout engine replica, on one or several devices."""

    slots: int
    """Most requests that may decode at once."""
    kv_tokens: int
    """Tokens of KV that fit beside one resident version."""
    version_kv_tokens: int = 0
    """Tokens of KV that each further resident version displaces."""
    max_versions: int = 1
    """Most versions that may be resident at once."""
    gpus: int = 1
    node: int = 0
    """Instances of one node exchange KV over the fast link."""
    elastic: bool = False
    """Generates until a batch is ready, then trains."""
    moves_kv: bool = True
    """A live request can be exported with its KV; otherwise it is prefilled again."""
    continues: bool = True
    """A request can start from tokens generated elsewhere; otherwise it starts again."""
    parks: bool = True
    """A request's KV can be taken to host memory on command; otherwise the instance preempts by itself."""

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
