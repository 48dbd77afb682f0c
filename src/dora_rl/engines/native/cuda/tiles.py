"""How a product is cut into pieces of work."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """What a program takes at a time: rows, outputs, inputs; its warps, and loads in flight.

    The matrix units want 64 of their long side, which is the outputs or the rows.
    """

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    has_long_rows: bool = False
