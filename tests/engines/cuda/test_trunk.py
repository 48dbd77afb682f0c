"""A pass whose products are split says what one in whole products says; where bits are promised none is."""

import pytest
import torch
from torch import Tensor

from dora_rl.engines.native.cuda.kernels.library import parts_for, usual_parts
from dora_rl.engines.native.cuda.tile_search import keep
from dora_rl.engines.native.cuda.tiles import TileChoices, split_key
from dora_rl.engines.native.cuda.trunk import Tokens, Trunk, Way
from dora_rl.model.tiny import seeded_decoder, tiny_config

MODEL = tiny_config(50)
NUM = 70
OUT, DOWN = (64, 64), (64, 192)
"""Outputs and inputs of the two products that are added to the residual."""

pytestmark = pytest.mark.usefixtures("some_gpu")


def hidden(device: str, way: Way) -> Tensor:
    decoder = seeded_decoder(MODEL, seed=1).to(device)
    tokens, slots = torch.arange(NUM, device=device).int() % 50, torch.zeros(NUM, device=device).int()
    out = torch.full((NUM, MODEL.hidden_size), torch.nan, device=device)
    which = Tokens(tokens_T=tokens, slots_T=slots, positions_T=slots, hidden_TH=out)

    def attend(layer: int, qkv_TD: Tensor, mixed_TD: Tensor) -> None:
        mixed_TD.copy_(qkv_TD[:, : MODEL.q_size])

    with torch.no_grad():
        trunk = Trunk(MODEL, NUM, torch.float32, torch.device(device))
        trunk.run(decoder, which, torch.zeros(1, device=device).int(), attend, way)
    return out


def split_all() -> None:
    keep(TileChoices(splits={split_key(NUM, *OUT): 2, split_key(NUM, *DOWN): 4}))


def test_split_products_give_the_same_hidden_states(device: str) -> None:
    whole = hidden(device, "many")
    split_all()
    split = hidden(device, "many")
    torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-5)
    assert not split.equal(whole), "nothing was split"


def test_where_bits_are_promised_nothing_is_split(device: str) -> None:
    whole = hidden(device, "fixed")
    split_all()
    assert hidden(device, "fixed").equal(whole)


def test_a_choice_is_taken_for_its_rows_and_matrix_alone() -> None:
    keep(TileChoices(splits={split_key(192, 4096, 12288): 3}))
    assert parts_for(192, 4096, 12288) == parts_for(129, 4096, 12288) == 3
    assert parts_for(193, 4096, 12288) == usual_parts(193, 4096, 12288) == 2
    assert parts_for(192, 4096, 4096) == 2


def test_the_usual_parts_fill_a_device_without_cutting_inputs_short() -> None:
    assert [usual_parts(128, outputs, 6144) for outputs in (1024, 2048, 4096, 8192, 16384)] == [4, 4, 2, 1, 1]
    assert [usual_parts(rows, 2048, 6144) for rows in (65, 256, 257, 384)] == [4, 4, 2, 2]
    assert [usual_parts(128, 1024, inputs) for inputs in (512, 1024, 1000, 2048)] == [1, 2, 1, 4]
    assert parts_for(385, 1024, 6144) == 1
