"""What can be wrong with the numbers that come in."""

from dora_rl.core.errors import DoraError


class RewardError(DoraError):
    """A reward that is not a finite number: one such would turn its whole batch into NaN."""
