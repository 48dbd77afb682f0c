"""Several versions are resident; a request keeps its own, and what is wrong stays with what is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.errors import EngineError, OutOfMemory, VersionError
from dora_rl.engines.memory_ledger import MemoryLedger
from dora_rl.engines.native.engine_factory import open_engine
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.scheduling.stops import Stops
from dora_rl.engines.requests import Failed, Finished, Request, Sampling, Stopping, StreamKey
from dora_rl.model.decoder import Decoder
from dora_rl.model.delta import ParameterChange
from dora_rl.model.save import save_decoder
from dora_rl.model.tiny import save_tiny, seeded_decoder, tiny_config
from dora_rl.model.tokenizer import load_eos_ids, load_tokenizer

MakeEngine = Callable[..., NativeEngine]


def request(number: int, version: int = 0, **changes: object) -> Request:
    fields: dict[str, object] = {
        "id": number,
        "version": version,
        "prompt": (5, 6, 7, 8, 9, 10, 11, 12, 13),
        "key": StreamKey(seed=number),
        "sampling": Sampling(temperature=0),
        "stopping": Stopping(max_new_tokens=10, is_length_prescribed=True),
        "group": 1,
    }
    return Request(**fields | changes)  # type: ignore[arg-type]


def tokens(engine: NativeEngine, asked: Request) -> tuple[int, ...]:
    engine.submit(asked)
    (event,) = engine.run()
    assert isinstance(event, Finished), event
    return event.tokens


def delta_between(engine: NativeEngine, base: int, version: int) -> dict[str, ParameterChange]:
    """Every value that differs."""
    old, new = (dict(engine.decoder(number).named_parameters()) for number in (base, version))
    changes = {}
    for name, parameter in new.items():
        indices = (parameter != old[name]).flatten().nonzero().squeeze(1)
        changes[name] = ParameterChange(indices_N=indices, values_N=parameter.flatten()[indices].clone())
    return changes


def test_an_adopted_delta_is_the_version_it_leads_to(make_engine: MakeEngine) -> None:
    engine = make_engine()
    expected, delta = tokens(engine, request(1, version=2)), delta_between(engine, 0, 2)
    assert tokens(engine, request(2, version=0)) != expected
    engine.adopt_version(7, 0, delta)
    assert engine.load().versions == (1, 2, 7)
    assert tokens(engine, request(3, version=7)) == expected


def test_adopting_leaves_running_requests_their_version(make_engine: MakeEngine) -> None:
    engine = make_engine()
    expected, delta = tokens(engine, request(1, version=0)), delta_between(engine, 0, 2)
    engine.submit(request(2, version=0))
    engine.step()
    engine.adopt_version(7, 0, delta)
    assert engine.load().versions == (0, 1, 2, 7)
    (event,) = engine.run()
    assert isinstance(event, Finished)
    assert event.tokens == expected


def test_a_base_that_is_kept_serves_on_beside_what_it_became(make_engine: MakeEngine) -> None:
    engine = make_engine()
    old, new = (tokens(engine, request(1, version=version)) for version in (0, 2))
    engine.adopt_version(7, 0, delta_between(engine, 0, 2), keeps_base=True)
    assert engine.load().versions == (0, 1, 2, 7)
    assert tokens(engine, request(2, version=0)) == old
    assert tokens(engine, request(3, version=7)) == new


@pytest.mark.parametrize("way", ["dropped and loaded", "adopted in place and loaded"])
def test_a_prompt_kept_under_a_name_is_not_used_under_its_next_owner(
    way: str, make_engine: MakeEngine, directories: list[Path]
) -> None:
    engine = make_engine()
    expected, delta = tokens(engine, request(1, version=2)), delta_between(engine, 0, 1)
    assert tokens(engine, request(2, version=0)) != expected
    if way == "dropped and loaded":
        engine.drop_version(0)
    else:
        engine.adopt_version(7, 0, delta)
    engine.load_version(0, directories[2])
    assert tokens(engine, request(3, version=0)) == expected


def test_a_version_in_use_is_not_dropped(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit(request(1, version=1))
    engine.step()
    with pytest.raises(VersionError, match="in use"):
        engine.drop_version(1)
    engine.run()
    engine.drop_version(1)
    assert engine.load().versions == (0, 2)
    engine.submit(request(2, version=1))
    (event,) = engine.run()
    assert isinstance(event, Failed)
    assert "version 1 is not resident" in event.message


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request(9, version=5), "version 5 is not resident"),
        (request(9, prompt=(1,) * 600), "leave none to generate"),
        (request(9, stopping=Stopping(max_new_tokens=400)), "KV blocks"),
        (request(9, prompt=(1, 200)), "vocabulary of 103"),
        (request(9, prompt=()), "empty"),
        (request(1), "here already"),
    ],
)
def test_a_bad_request_fails_alone(asked: Request, message: str, make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=20)
    engine.submit(request(1))
    engine.submit(asked)
    failed, finished = engine.run()
    assert isinstance(failed, Failed)
    assert message in failed.message
    assert isinstance(finished, Finished)


def test_a_corrupt_or_foreign_checkpoint_leaves_all_as_it_was(
    make_engine: MakeEngine, directories: list[Path], tmp_path: Path
) -> None:
    engine = make_engine()
    free = engine.ledger.free("device")
    engine.submit(request(1))
    engine.step()
    for file in directories[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[: 5000 if "safetensors" in file.name else None])
    foreign = tmp_path / "foreign"
    save_decoder(seeded_decoder(tiny_config(90), 0), foreign)
    whole = {name: tensor.clone() for name, tensor in engine.decoder(0).state_dict().items()}
    misshapen = whole | {"norm.weight": torch.ones(65)}
    for weights, message in (
        (tmp_path, "damaged"),
        (foreign, "another model"),
        (tmp_path / "absent", "absent"),
        ({}, "Missing key"),
        (misshapen, "size mismatch"),
        (whole | {"more": torch.ones(1)}, "Unexpected key"),
    ):
        with pytest.raises(VersionError, match=message):
            engine.load_version(3, weights)
    assert engine.ledger.free("device") == free
    assert engine.load().versions == (0, 1, 2)
    (event,) = engine.run()
    assert isinstance(event, Finished)


NORM = "norm.weight"


def change(indices: list[int], values: list[float], dtype: torch.dtype = torch.float32) -> ParameterChange:
    return ParameterChange(indices_N=torch.tensor(indices), values_N=torch.tensor(values, dtype=dtype))


@pytest.mark.parametrize(
    ("base", "delta", "message"),
    [
        (9, {}, "version 9 is not resident"),
        (1, {"nowhere": change([0], [1.0])}, "does not have"),
        (1, {NORM: change([64], [1.0])}, "reaches beyond"),
        (1, {NORM: change([-1], [1.0])}, "reaches beyond"),
        (1, {NORM: change([0, 1], [1.0])}, "do not belong together"),
        (
            1,
            {NORM: ParameterChange(indices_N=torch.tensor([0.0]), values_N=torch.ones(1))},
            "do not belong together",
        ),
        (1, {NORM: change([0], [1.0], torch.bfloat16)}, "the engine's is torch.float32"),
        (1, {NORM: change([0], [float("nan")])}, "no number"),
    ],
)
def test_a_wrong_delta_changes_nothing(
    base: int, delta: dict[str, ParameterChange], message: str, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    expected, free = tokens(engine, request(1, version=1)), engine.ledger.free("device")
    engine.submit(request(2, version=0))
    engine.step()
    good = {"embed.weight": change([3], [9.0])}
    with pytest.raises(VersionError, match=message):
        engine.adopt_version(7, base, good | delta)
    assert engine.load().versions == (0, 1, 2)
    assert engine.ledger.free("device") == free
    (event,) = engine.run()
    assert isinstance(event, Finished)
    assert tokens(engine, request(3, version=1)) == expected


def test_a_change_that_cannot_be_served_is_undone(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    expected, delta = tokens(engine, request(1, version=0)), delta_between(engine, 0, 2)
    prepare = engine._device.prepare

    def refuse(version: int, decoder: Decoder) -> None:
        if version == 7:
            raise EngineError("not this one")
        prepare(version, decoder)

    monkeypatch.setattr(engine._device, "prepare", refuse)
    with pytest.raises(VersionError, match="not this one"):
        engine.adopt_version(7, 0, delta)
    assert engine.load().versions == (0, 1, 2)
    assert tokens(engine, request(2, version=0)) == expected


def test_a_full_cache_delays_and_fails_nobody(make_engine: MakeEngine) -> None:
    """Many times more than fits, in a cache that holds three requests to their end."""
    roomy, tight = make_engine(), make_engine(num_blocks=7, max_running=16)
    for engine in (roomy, tight):
        for number in range(30):
            engine.submit(request(number, version=number % 3, prompt=tuple(range(3, 6 + number % 5))))
    expected = {event.id: event for event in roomy.run()}
    events = {event.id: event for event in tight.run()}
    assert tight.load().num_preempted > 0
    assert events.keys() == expected.keys()
    for number, event in events.items():
        assert isinstance(event, Finished)
        assert event.tokens == expected[number].tokens  # type: ignore[union-attr]
    assert tight.load().num_running == tight.load().num_waiting == 0


def test_more_versions_than_there_is_room_for_are_refused(
    make_engine: MakeEngine, directories: list[Path]
) -> None:
    engine = make_engine()
    engine.load_version(3, directories[0])
    with pytest.raises(VersionError, match="4 versions are resident"):
        engine.load_version(4, directories[0])
    with pytest.raises(VersionError, match="resident already"):
        engine.load_version(3, directories[0])


def test_an_engine_that_does_not_fit_does_not_start() -> None:
    config = EngineConfig(limits=Limits(num_blocks=10_000, max_positions=64), device_bytes=2**20)
    with pytest.raises(OutOfMemory, match="KV needs"):
        NativeEngine(tiny_config(50), config, Stops([2]))


def test_the_ledger_shows_what_is_reserved(make_engine: MakeEngine) -> None:
    text = str(make_engine().ledger)
    for name in ("KV", "workspace", "version 0", "version 2", "offloaded KV", "free"):
        assert name in text


def test_the_ledger_is_never_exceeded() -> None:
    ledger = MemoryLedger(device_bytes=10, host_bytes=0)
    ledger.reserve("device", "first", 7)
    with pytest.raises(OutOfMemory):
        ledger.reserve("device", "second", 4)
    ledger.release("device", "first")
    ledger.reserve("device", "second", 10)
    assert ledger.free("device") == 0


def test_a_stop_string_ends_a_turn_where_its_text_appears(make_engine: MakeEngine) -> None:
    engine = make_engine()
    drawn = tokens(engine, request(1))
    text = "".join(chr(32 + token) for token in drawn)
    stop = text[3:6]
    first = text.index(stop) + 3
    engine.submit(
        request(2, stopping=Stopping(max_new_tokens=10, stop_tokens=(), stop_strings=("zzzzz", stop)))
    )
    (event,) = engine.run()
    assert isinstance(event, Finished)
    assert event.tokens == drawn[:first]
    assert event.reason == "stop string"


def test_stop_tokens_end_a_turn_unless_its_length_is_prescribed(make_engine: MakeEngine) -> None:
    engine = make_engine()
    drawn = tokens(engine, request(1))
    stopping = Stopping(max_new_tokens=10, stop_tokens=(drawn[4],))
    engine.submit(request(2, stopping=stopping))
    (event,) = engine.run()
    assert isinstance(event, Finished)
    assert event.tokens == drawn[: drawn.index(drawn[4]) + 1]
    assert event.reason == "stop token"


def test_an_aborted_request_gives_what_it_has(make_engine: MakeEngine) -> None:
    engine = make_engine()
    drawn = tokens(engine, request(1))
    engine.submit(request(2))
    for _ in range(4):
        engine.step()
    engine.abort(2)
    (event,) = engine.finished()
    assert isinstance(event, Finished)
    assert event.reason == "aborted"
    assert event.tokens == drawn[:4]
    assert not engine.run()


def test_an_engine_opens_a_directory_with_its_stop_tokens_and_text(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    limits = Limits(num_blocks=20, max_positions=256)
    engine = open_engine(tmp_path, EngineConfig(limits=limits), version=4)
    (eos,) = load_eos_ids(tmp_path)
    asked = request(1, version=4, stopping=Stopping(max_new_tokens=60, is_length_prescribed=True))
    drawn = tokens(engine, asked)
    character = load_tokenizer(tmp_path).decode([drawn[5]])
    engine.submit(request(2, version=4, stopping=Stopping(max_new_tokens=60, stop_strings=(character,))))
    (event,) = engine.run()
    assert isinstance(event, Finished)
    end = min(drawn.index(token) for token in (drawn[5], eos) if token in drawn)
    assert event.tokens == drawn[: end + 1]
