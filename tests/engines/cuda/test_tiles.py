"""What a tuning run found is kept by device and version, and taken from then on."""

import pytest

import dora_rl
from dora_rl.engines.native.cuda import mixture
from dora_rl.engines.native.cuda.tile_search import keep
from dora_rl.engines.native.cuda.tiles import (
    ExpertTiles,
    Tile,
    TileChoices,
    choices,
    choices_file,
    experts_key,
)
from dora_rl.model.config import Experts
from dora_rl.model.experts import ExpertMlp

TILE = Tile(rows=32, outputs=16, inputs=16, warps=2, stages=2)
FOUND = ExpertTiles(gate=TILE, down=TILE)

pytestmark = pytest.mark.usefixtures("some_gpu")


def test_a_choice_is_taken_for_its_shape_alone() -> None:
    experts = Experts(num_experts=4, num_active=2, intermediate_size=24, is_normalised=True)
    mlp = ExpertMlp(40, experts, 0)
    path = keep(TileChoices(experts={experts_key(16, 4, 24, 40): FOUND}))
    assert path.name == f"some-gpu-{dora_rl.__version__}.json"
    assert mixture._tiles_for(16, mlp) == mixture._tiles_for(31, mlp) == FOUND
    assert mixture._tiles_for(32, mlp) == mixture.usual_tiles(32, 4) != FOUND
    assert mixture._tiles_for(16, ExpertMlp(48, experts, 0)) == mixture.usual_tiles(16, 4)


def test_a_file_that_cannot_be_read_is_no_choice() -> None:
    keep(TileChoices(experts={"some": FOUND}))
    choices_file().write_text("{")
    choices.cache_clear()
    assert choices() == TileChoices()


def test_tiles_grow_with_the_rows_of_an_expert() -> None:
    rows = [mixture.usual_tiles(num_pairs, 128).gate.rows for num_pairs in (8, 512, 2048, 65_536)]
    assert rows == [16, 16, 32, 128]
