"""How products are cut into pieces of work, and what a tuning run found best for a shape.

Choices lie in the user's cache, a file for each kind of device and version of this package, written by
`tile_search`. Where there is none, what measured best on an H200.
"""

from functools import cache
from pathlib import Path

import msgspec
import torch
from msgspec import field

from dora_rl.core.record import Record
from dora_rl.core.user_cache import cache_directory
from dora_rl.core.version import VERSION


class Tile(Record, frozen=True):
    """What a program takes at a time: rows, outputs, inputs; its warps, and loads in flight.

    The matrix units want 64 of their long side, which is the outputs or the rows.
    """

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int
    has_long_rows: bool = False


class ExpertTiles(Record, frozen=True):
    """The tiles for the gate and up product of experts, and for the down product, of the same rows."""

    gate: Tile
    down: Tile


class TileChoices(Record, frozen=True):
    """What tuning runs found best, by shape: the tiles of experts, and the parts of inputs that are split."""

    experts: dict[str, ExpertTiles] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)


def experts_key(num_pairs: int, num_experts: int, inner: int, hidden: int) -> str:
    """The key of a tuned shape: experts, sizes, and (token, rank) pairs rounded down to a power of two."""
    return f"{num_experts} experts {inner}x{hidden}, {1 << num_pairs.bit_length() - 1} pairs"


def split_key(num_rows: int, num_outputs: int, num_inputs: int) -> str:
    """The key of a tuned product: its matrix, and rows rounded up to a multiple of 64."""
    return f"{num_outputs}x{num_inputs}, {-(-num_rows // 64) * 64} rows"


def choices_file() -> Path:
    """The file of the choices for this device, under $DORA_CACHE or the user's cache."""
    device = torch.cuda.get_device_name().replace(" ", "-").lower()
    return cache_directory() / "tiles" / f"{device}-{VERSION}.json"


@cache
def choices() -> TileChoices:
    """The tile choices known for this device; read once."""
    if not torch.cuda.is_available():
        return TileChoices()
    try:
        return msgspec.json.decode(choices_file().read_bytes(), type=TileChoices)
    except (OSError, msgspec.DecodeError):
        return TileChoices()
