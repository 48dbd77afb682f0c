"""Draws follow the distribution asked for, and depend on a request's key and position alone."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dora_rl.core.errors import ConfigError
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.philox import gumbel, words
from dora_rl.engines.native.sampler import Drawn, Sampler
from dora_rl.engines.native.scheduling.step_plan import Entrant
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey
from dora_rl.engines.streams import philox, stream_of
from dora_rl.model.attention import PackedAttention
from dora_rl.model.packed_sequences import pack

KEYS = st.builds(
    StreamKey,
    seed=st.integers(0, 2**64 - 1),
    **dict.fromkeys(("epoch", "row", "member", "attempt", "branch"), st.integers(0, 2**32 - 1)),
)


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], block: tuple[int, ...]
) -> None:
    assert philox(counter, key) == block


@given(key=KEYS, position=st.integers(0, 2**31), count=st.integers(1, 30))
def test_tensors_and_integers_give_the_same_words(key: StreamKey, position: int, count: int) -> None:
    k0, k1, c2, c3 = stream = stream_of(key)
    expected = [word for block in range(8) for word in philox((block, position, c2, c3), (k0, k1))]
    assert words(torch.tensor([stream]), torch.tensor([position]), count).tolist() == [expected[:count]]


@given(st.lists(KEYS, min_size=2, max_size=2, unique=True))
def test_different_keys_have_different_streams(keys: list[StreamKey]) -> None:
    assert stream_of(keys[0]) != stream_of(keys[1])


def test_the_first_branch_draws_as_what_has_no_branches() -> None:
    key = StreamKey(seed=7, epoch=1, row=2, member=3, attempt=4)
    assert stream_of(key) == (0x0F4D221A, 0xA2566CE1, 0xF498801B, 0xB076574D)


def test_noise_is_standard_gumbel() -> None:
    noise = gumbel(torch.tensor([stream_of(StreamKey(seed=3))]), torch.tensor([9]), 200_000).double()
    assert noise.isfinite().all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)


def sampler(*samplings: Sampling, vocab_size: int, seed: int = 0) -> Sampler:
    made = Sampler(len(samplings), vocab_size)
    for slot, sampling in enumerate(samplings):
        stream = stream_of(StreamKey(seed=seed, member=slot))
        made.enter([Entrant(slot=slot, version=0, sampling=sampling, stream=stream)])
    return made


def draw_many(sampling: Sampling, logits_V: Tensor, count: int = 4000) -> Drawn:
    own = sampler(sampling, vocab_size=len(logits_V))
    return own.draw(logits_V.repeat(count, 1), torch.zeros(count, dtype=torch.int64), torch.arange(count))


LOGITS = torch.tensor([2.0, 1.5, 0.0, -1.0, 1.0, -3.0])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_temperature(temperature: float) -> None:
    drawn = draw_many(Sampling(temperature=temperature), LOGITS)
    shares = drawn.tokens_R.bincount(minlength=6) / 4000
    assert (shares - (LOGITS / temperature).softmax(0)).abs().max() < 0.03
    expected = (LOGITS / temperature).log_softmax(0)[drawn.tokens_R]
    torch.testing.assert_close(drawn.logprobs_R, expected)
    torch.testing.assert_close(drawn.cut_logprobs_R, expected)


CUTS = {
    "top_k": (Sampling(top_k=2), [0, 1]),
    "top_p": (Sampling(top_p=0.6), [0, 1]),
    "top_p that one token reaches": (Sampling(top_p=0.1), [0]),
    "min_p": (Sampling(min_p=0.3), [0, 1, 4]),
    "top_p of what top_k kept": (Sampling(top_k=2, top_p=0.61), [0]),
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_excludes_tokens_and_is_in_the_second_logprob(cut: str) -> None:
    sampling, kept = CUTS[cut]
    drawn = draw_many(sampling, LOGITS)
    assert sorted(set(drawn.tokens_R.tolist())) == kept
    torch.testing.assert_close(drawn.logprobs_R, LOGITS.log_softmax(0)[drawn.tokens_R])
    inside = LOGITS[kept].log_softmax(0)
    expected = torch.stack([inside[kept.index(token)] for token in drawn.tokens_R.tolist()])
    torch.testing.assert_close(drawn.cut_logprobs_R, expected)


def test_greedy_takes_the_likeliest_and_records_it_at_temperature_one() -> None:
    drawn = draw_many(Sampling(temperature=0, top_k=3), LOGITS, count=3)
    assert drawn.tokens_R.tolist() == [0, 0, 0]
    torch.testing.assert_close(drawn.logprobs_R, LOGITS.log_softmax(0)[[0, 0, 0]])


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"min_p": 1.5}])
def test_an_impossible_distribution_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Sampling(**wrong)  # type: ignore[arg-type]


def requests(count: int) -> list[Request]:
    samplings = [
        Sampling(),
        Sampling(temperature=0.7, top_p=0.9),
        Sampling(temperature=0),
        Sampling(min_p=0.1),
    ]
    return [
        Request(
            id=number,
            version=number % 3,
            prompt=tuple(3 + (number * 7 + i) % 90 for i in range(1 + number * 5 % 40)),
            key=StreamKey(seed=11, row=number),
            sampling=samplings[number % 4],
            stopping=Stopping(max_new_tokens=12),
        )
        for number in range(count)
    ]


def outcomes(engine: NativeEngine, asked: list[Request]) -> dict[int, Finished]:
    for request in asked:
        engine.submit(request)
    return {each.id: each for each in engine.run() if isinstance(each, Finished)}


def test_a_draw_depends_on_its_key_and_not_on_the_batch(make_engine: Callable[..., NativeEngine]) -> None:
    asked = requests(20)
    together = outcomes(make_engine(), asked)
    alone = make_engine(max_running=1, step_tokens=40)
    for request in asked[::3]:
        mine = outcomes(alone, [request])[request.id]
        assert mine.tokens == together[request.id].tokens
        assert mine.logprobs == pytest.approx(together[request.id].logprobs, abs=1e-4)


def test_recorded_logprobs_are_those_of_the_decoder(make_engine: Callable[..., NativeEngine]) -> None:
    engine, asked = make_engine(), requests(8)
    for number, ended in outcomes(engine, asked).items():
        request = asked[number]
        assert (len(ended.cut_logprobs) > 0) == request.sampling.is_cut
        expected = decoder_logprobs(engine, request, ended)
        assert list(ended.logprobs) == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
def decoder_logprobs(engine: NativeEngine, request: Request, ended: Finished) -> list[float]:
    decoder = engine.decoder(request.version)
    packed = pack([[*request.prompt, *ended.tokens]], device=next(decoder.parameters()).device)
    hidden = decoder(packed.tokens_T, packed.positions_T, PackedAttention(packed.lengths))
    first = len(request.prompt)
    targets = packed.tokens_T[first:]
    temperature = request.sampling.temperature or 1.0
    return decoder.logprobs(hidden[first - 1 : -1], targets, temperature).logprobs_T.tolist()
