"""A warm start imitates what it is shown, and is a function of its seed."""

import torch
from msgspec.structs import replace

from dora_rl.core.recipe.live import WarmStart
from dora_rl.model.attention import PackedAttention
from dora_rl.model.decoder import Decoder
from dora_rl.model.packed_sequences import pack
from dora_rl.model.tiny import seeded_decoder, tiny_config
from dora_rl.trainer.supervised import Shown, warm_started

MODEL = tiny_config(31)
SHOWN = [Shown(prompt=(first, 2), response=(first + 1, first + 2, 1)) for first in range(5, 15)]
CONFIG = WarmStart(steps=30, update_rows=8, rate=3e-3)


def logprob(decoder: Decoder) -> float:
    """Of an answer's token, on average."""
    packed = pack([(*each.prompt, *each.response) for each in SHOWN])
    with torch.no_grad():
        hidden = decoder(packed.tokens_T, packed.positions_T, PackedAttention(packed.lengths))
        # Token i is predicted at i - 1; the two tokens of a prompt are not answers.
        is_answer = packed.positions_T >= 2
        at = is_answer.nonzero().squeeze(1)
        return float(decoder.logprobs(hidden[at - 1], packed.tokens_T[at]).logprobs_T.mean())


def started(seed: int, config: WarmStart = CONFIG) -> Decoder:
    return warm_started(seeded_decoder(MODEL, 0), SHOWN, config, seed=seed)


def test_what_was_shown_becomes_likely() -> None:
    assert logprob(seeded_decoder(MODEL, 0)) < -3.0
    assert logprob(started(seed=0)) > -1.0


def test_the_seed_decides_which_rows_are_shown() -> None:
    one, again, other = (started(seed).state_dict() for seed in (0, 0, 1))
    assert all(one[name].equal(again[name]) for name in one)
    assert not all(one[name].equal(other[name]) for name in one)


def test_every_setting_of_the_optimizer_counts() -> None:
    as_is = started(seed=0).state_dict()
    for config in (replace(CONFIG, rate=2e-3), replace(CONFIG, beta2=0.9), replace(CONFIG, steps=29)):
        changed = started(seed=0, config=config).state_dict()
        assert not all(as_is[name].equal(changed[name]) for name in as_is), config
