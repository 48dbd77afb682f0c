"""The experts behind each draw are recorded, and stay with their request wherever it goes."""

from array import array
from collections.abc import Sequence

import pytest
import torch
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.native.transfer import Exported
from dora_rl.engines.requests import Finished, Request, Stopping, StreamKey
from dora_rl.model.attention import PackedAttention
from dora_rl.model.config import Experts, ModelConfig
from dora_rl.model.decoder import Decoder
from dora_rl.model.packed_sequences import pack
from dora_rl.model.router_notes import RouterNotes
from dora_rl.model.tiny import seeded_decoder, tiny_config

EXPERTS = Experts(num_experts=5, num_active=2, intermediate_size=24, is_normalised=True, dense_layers=(1,))
MODEL = replace(tiny_config(61), family="qwen3_moe", num_layers=3, experts=EXPERTS)


def decoder_of(model: ModelConfig) -> Decoder:
    decoder = seeded_decoder(model, seed=1)
    for parameter in decoder.parameters():
        parameter.data *= 4
    return decoder


def make_engine(*, num_blocks: int = 60, **settings: bool) -> NativeEngine:
    limits = Limits(
        num_blocks=num_blocks,
        block_size=8,
        max_running=4,
        step_tokens=16,
        max_positions=64,
        num_host_blocks=40,
    )
    config = EngineConfig(limits=limits, **{"records_experts": True, "max_versions": 2} | settings)  # type: ignore[arg-type]
    engine = NativeEngine(MODEL, config, Stops([]))
    for version in range(2):
        engine.load_version(version, dict(decoder_of(MODEL).state_dict()))
    return engine


def requests() -> list[Request]:
    return [
        Request(
            id=number,
            version=number % 2,
            prompt=tuple((7 * place + number) % 61 for place in range((1, 6, 20, 33, 20, 20)[number])),
            key=StreamKey(seed=1, row=number),
            stopping=Stopping(max_new_tokens=12),
            group=2 if number in (2, 4) else None,
        )
        for number in range(6)
    ]


def expected(prompt: Sequence[int], tokens: Sequence[int]) -> tuple[bytes, ...]:
    """The experts of a pass over the whole sequence, of the token before each that was drawn."""
    packed, routing = pack([[*prompt, *tokens]]), RouterNotes()
    with torch.no_grad():
        decoder_of(MODEL)(packed.tokens_T, packed.positions_T, PackedAttention(packed.lengths), routing)
    chosen_TW = torch.cat([routing.chosen[layer] for layer in (0, 2)], dim=1)
    return tuple(array("B", row).tobytes() for row in chosen_TW[len(prompt) - 1 : -1].tolist())


@pytest.mark.parametrize("way", ["plain", "preempted", "batch invariant"])
def test_what_is_recorded_are_the_experts_of_the_token_before_each_draw(way: str) -> None:
    num_blocks = 13 if way == "preempted" else 60
    engine = make_engine(num_blocks=num_blocks, is_batch_invariant=way == "batch invariant")
    for request in requests():
        engine.submit(request)
    ended = [event for event in engine.run() if isinstance(event, Finished)]
    assert len(ended) == 6
    for each in ended:
        assert each.experts == expected(requests()[each.id].prompt, each.tokens)


def test_a_moved_request_takes_its_experts_along() -> None:
    first, second = make_engine(), make_engine()
    request = requests()[3]
    first.submit(request)
    while not (drawn := first.drawn(request.id)) or len(drawn.tokens) < 5:
        first.step()
    second.import_request(Exported.from_bytes(first.export_request(request.id).to_bytes()))
    (ended,) = [event for event in second.run() if isinstance(event, Finished)]
    assert ended.experts == expected(request.prompt, ended.tokens)


def test_a_continued_request_records_from_where_it_goes_on() -> None:
    whole, engine = make_engine(), make_engine()
    whole.submit(requests()[1])
    (before,) = [event for event in whole.run() if isinstance(event, Finished)]
    engine.submit(requests()[1].behind(before.tokens[:4], 8))
    (ended,) = [event for event in engine.run() if isinstance(event, Finished)]
    assert ended.tokens == before.tokens[4:]
    assert ended.experts == before.experts[4:]


def test_nothing_is_recorded_unasked() -> None:
    engine = make_engine(records_experts=False)
    engine.submit(requests()[0])
    (ended,) = [event for event in engine.run() if isinstance(event, Finished)]
    assert ended.experts == ()


def test_a_gpu_refuses_to_record() -> None:
    backend = pytest.importorskip("dora_rl.engines.native.cuda.cuda_backend").backend_on("cpu")
    limits = Limits(num_blocks=9, block_size=8, max_running=2, step_tokens=8, max_positions=64)
    with pytest.raises(ConfigError, match="does not record experts"):
        NativeEngine(MODEL, EngineConfig(limits=limits, records_experts=True), Stops([]), backend=backend)
