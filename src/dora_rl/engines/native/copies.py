"""Copies of blocks, many at a time and yet as if one after the other."""

from collections.abc import Sequence


def independent(pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Runs of consecutive pairs in which no pair touches the target of another."""
    batches: list[list[tuple[int, int]]] = []
    written: set[int] = set()
    for source, target in pairs:
        if not batches or source in written or target in written:
            batches.append([])
            written = set()
        batches[-1].append((source, target))
        written.add(target)
    return batches
