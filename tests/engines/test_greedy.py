"""Greedy output is that of transformers, token for token, whatever happens to a request on its way."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey

NUM_NEW = 24
EOS = 2


def mixed_requests() -> list[Request]:
    """66 prompts, 99 requests: lengths from 1 to 90 tokens, some in groups of four, three versions."""
    generator = torch.Generator().manual_seed(5)
    requests = []
    for number in range(66):
        length = (1, 2, 7, 8, 9, 33, 90, 17)[number % 8]
        prompt = tuple(torch.randint(3, 103, (length,), generator=generator).tolist())
        num_members = 4 if number % 6 == 5 else 1
        for member in range(num_members):
            requests.append(
                Request(
                    id=len(requests),
                    version=number % 3,
                    prompt=prompt,
                    key=StreamKey(seed=0, row=number, member=member),
                    sampling=Sampling(temperature=0),
                    stopping=Stopping(max_new_tokens=NUM_NEW),
                    group=number if num_members > 1 else None,
                )
            )
    return requests


@pytest.fixture(scope="session")
def expected(references: list[PreTrainedModel]) -> dict[int, list[int]]:
    """What transformers generates for each, prompts of one length at a time so that none is padded."""
    requests, outputs = mixed_requests(), {}
    for version, length in {(each.version, len(each.prompt)) for each in requests}:
        batch = [each for each in requests if (each.version, len(each.prompt)) == (version, length)]
        tokens = torch.tensor([each.prompt for each in batch])
        generated = references[version].generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=NUM_NEW,
            do_sample=False,
            pad_token_id=EOS,
            eos_token_id=EOS,
        )
        outputs |= dict(zip([each.id for each in batch], generated[:, length:].tolist(), strict=True))
    return {number: _to_end(tokens) for number, tokens in outputs.items()}


def _to_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def count_close_calls(
    events: list[Finished], expected: dict[int, list[int]], references: list[PreTrainedModel]
) -> int:
    """How many differ where the reference's two likeliest are within 1e-4; any other difference fails."""
    num_close = 0
    prompts = {each.id: list(each.prompt) for each in mixed_requests()}
    assert {each.id for each in events} == expected.keys()
    for each in events:
        ours, theirs = list(each.tokens), expected[each.id]
        if ours != theirs:
            first = next(i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1])
            context = torch.tensor([prompts[each.id] + theirs[:first]])
            top = references[each.version](context).logits[0, -1].topk(2).values
            assert top[0] - top[1] < 1e-4, f"request {each.id} differs at token {first}: {top}"
            num_close += 1
    return num_close


def finish(engine: NativeEngine) -> list[Finished]:
    events = engine.run()
    engine.check_integrity()
    assert all(isinstance(each, Finished) for each in events), events
    return events  # type: ignore[return-value]


SITUATIONS = {
    "plenty of everything": {},
    "small steps cut prompts into chunks": {"step_tokens": 16},
    "preempted to the host": {"num_blocks": 30, "num_host_blocks": 400},
    "preempted and computed again": {"num_blocks": 30},
    "planned three steps ahead": {"steps_ahead": 3},
    "preempted with steps ahead": {"steps_ahead": 2, "num_blocks": 40, "num_host_blocks": 8},
    "batch invariant and preempted": {"is_batch_invariant": True, "num_blocks": 60},
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_greedy_tokens_are_those_of_transformers(
    situation: str,
    make_engine: Callable[..., NativeEngine],
    expected: dict[int, list[int]],
    references: list[PreTrainedModel],
) -> None:
    engine = make_engine(**SITUATIONS[situation])
    for request in mixed_requests():
        engine.submit(request)
    num_close = count_close_calls(finish(engine), expected, references)
    assert num_close <= 1, f"{num_close} close calls of {len(expected)} requests"
    assert (engine.load().num_preempted > 0) == ("preempted" in situation)


def test_greedy_tokens_survive_a_move(
    make_engine: Callable[..., NativeEngine],
    expected: dict[int, list[int]],
    references: list[PreTrainedModel],
) -> None:
    source, target = make_engine(num_host_blocks=400), make_engine(num_host_blocks=1000, block_size=4)
    for request in mixed_requests():
        source.submit(request)
    events = []
    for number in range(len(expected)):
        source.step()
        done = source.finished()
        events += done
        if number not in {each.id for each in events}:
            target.import_request(source.export_request(number))
        events += source.finished()
    num_close = count_close_calls(events + finish(source) + finish(target), expected, references)
    assert num_close <= 1, f"{num_close} close calls of {len(expected)} requests"
