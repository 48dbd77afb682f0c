"""The integers of a step say which tokens are computed where, and which of them are followed by a draw."""

import torch

from dora_rl.engines.native.cuda.kernels.embed import FROM_SLOT
from dora_rl.engines.native.cuda.plan_buffers import PlanBuffers, Room
from dora_rl.engines.native.scheduling.step_plan import PlannedRow


def test_guesses_are_tokens_of_their_own_with_a_draw_behind_each() -> None:
    room = Room(num_rows=8, num_prefilled=16)
    buffers = PlanBuffers(room, filler_slot=9, stretch_tokens=4, device=torch.device("cpu"))
    counts, draws = buffers.put(
        [
            PlannedRow(serial=1, slot=2, start=30, tokens=(5,), is_sampled=True, guesses=(6, 7)),
            PlannedRow(serial=2, slot=4, start=10, tokens=(), is_sampled=True),
            PlannedRow(serial=3, slot=1, start=0, tokens=(11, 12, 13), is_sampled=True),
        ]
    )
    tokens, slots, positions = (words[:5].tolist() for words in buffers.decode)
    assert tokens[:4] == [5, 6, 7, FROM_SLOT]
    assert slots == [2, 2, 2, 4, 9]
    assert positions[:4] == [30, 31, 32, 10]
    # Hidden states of prefilled tokens come behind those of all decoded ones.
    assert draws == [(0, 2, 31), (1, 2, 32), (2, 2, 33), (3, 4, 11), (10, 1, 3)]
    assert counts.has_guesses
    assert (counts.num_decoded, counts.num_answers, counts.max_context) == (4, 5, 33)


def test_without_guesses_a_row_is_a_token() -> None:
    room = Room(num_rows=8, num_prefilled=0)
    buffers = PlanBuffers(room, filler_slot=9, stretch_tokens=4, device=torch.device("cpu"))
    counts, draws = buffers.put([PlannedRow(serial=1, slot=0, start=3, tokens=(5,), is_sampled=True)])
    assert draws == [(0, 0, 4)]
    assert not counts.has_guesses
