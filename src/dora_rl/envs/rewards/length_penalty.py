"""A soft penalty on length: DAPO's overlong punishment (arXiv 2503.14476, equation 13)."""

from collections.abc import Sequence
from typing import Any


def overlong_penalty(
    completion_ids: Sequence[Sequence[int]], *, max_tokens: int, buffer_tokens: int, **columns: Any
) -> list[float]:
    """0 up to `max_tokens - buffer_tokens` tokens, then falling evenly to -1 at `max_tokens`; -1 beyond."""
    if not 0 < buffer_tokens <= max_tokens:
        raise ValueError(f"buffer_tokens = {buffer_tokens} is not within 1 .. max_tokens = {max_tokens}")
    free_tokens = max_tokens - buffer_tokens
    return [0.0 - min(max(len(ids) - free_tokens, 0) / buffer_tokens, 1.0) for ids in completion_ids]
