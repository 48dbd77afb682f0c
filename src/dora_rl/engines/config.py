"""How large an engine is and how it computes: one frozen record, found by preparing and opened by a worker.

Knows no torch: what a dtype is to a library, and what a block costs, is the kind's own matter.
"""

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe.section import Count, Positive
from dora_rl.core.record import Record
from dora_rl.engines.errors import RequestError
from dora_rl.model.config import Dtype


class Limits(Record, frozen=True):
    """Sizes of an engine. None of them is ever exceeded."""

    num_blocks: Positive
    """Number of KV blocks on the device."""
    block_size: Positive = 32
    """Tokens in a KV block."""
    num_host_blocks: Count = 0
    """KV blocks that may be parked in host memory; where none is left, KV is computed again."""
    max_running: Positive = 64
    """Requests that may compute at once, all versions together."""
    step_tokens: Positive = 512
    """Most tokens of one step: decode comes first, the rest goes to prefill in chunks."""
    max_positions: Positive = 4096
    """Tokens of the longest sequence the model takes."""

    def __post_init__(self) -> None:
        sizes = (self.num_blocks, self.block_size, self.max_running, self.step_tokens, self.max_positions)
        if min(sizes) < 1 or self.num_host_blocks < 0:
            raise ConfigError(f"an engine needs at least one of everything: {self}")
        if self.step_tokens < self.max_running:
            raise ConfigError(
                f"{self.max_running} requests cannot all decode in a step of {self.step_tokens} tokens",
                hint="raise step_tokens or lower max_running",
            )

    def blocks_for(self, num_tokens: int) -> int:
        """How many KV blocks hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def check_length(self, num_tokens: int, max_tokens: int) -> None:
        """Refuse a sequence that has no room to grow, or could outgrow the cache even alone."""
        if num_tokens >= self.max_positions:
            raise RequestError(
                f"{num_tokens} tokens leave none to generate: a sequence has at most {self.max_positions}"
            )
        if max_tokens > self.max_positions:
            raise RequestError(
                f"it may grow to {max_tokens} tokens; a sequence has at most {self.max_positions} here"
            )
        # The last token is drawn and never computed.
        num_blocks = self.blocks_for(max_tokens - 1)
        if num_blocks > self.num_blocks:
            raise RequestError(
                f"up to {max_tokens} tokens need {num_blocks} KV blocks; the cache has {self.num_blocks}",
                hint="lower max_new_tokens or give the engine more KV",
            )


class EngineConfig(Record, frozen=True):
    """One instance's engine: how large it is and how it computes."""

    limits: Limits
    dtype: Dtype = "float32"
    """Dtype of weights, activations and KV: that of the versions in the store."""
    max_versions: Positive = 4
    """Versions that memory is set aside for."""
    is_batch_invariant: bool = False
    """Whether tokens and logprobs depend, bit for bit, on nothing but the request and its version."""
    steps_ahead: Count = 0
    """Steps of each version launched before the answer of an earlier one is taken in."""
    guessed_tokens: Count = 0
    """Most tokens guessed ahead for a request, from texts of the same prompt, while few decode."""
    records_experts: bool = False
    """Whether to record the experts behind each draw, of a mixture of experts."""
    device_bytes: Positive = 8 * 2**30
    host_bytes: Positive = 8 * 2**30
