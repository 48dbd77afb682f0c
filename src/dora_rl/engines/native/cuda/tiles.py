"""How a product is cut into pieces of work."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """What a program takes at a time: rows, outputs, inputs; its warps, and loads in flight."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    parts: int = 1
    """That the inputs are split into, each a program's."""
