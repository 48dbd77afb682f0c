"""Migration changes nothing: the same KV, bit for bit, and the draw that would have been made."""

from collections.abc import Callable

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.torch import save

from dora_rl.engines.errors import RequestError
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.transfer import HEADER_KEY, Exported
from dora_rl.engines.requests import Failed, Finished, Request, Sampling, Stopping, StreamKey

MakeEngine = Callable[..., NativeEngine]


def request(number: int = 0, **changes: object) -> Request:
    fields: dict[str, object] = {
        "id": number,
        "version": number % 3,
        "prompt": tuple(3 + (number * 7 + i) % 90 for i in range(1 + number * 11 % 50)),
        "key": StreamKey(seed=4, row=number),
        "sampling": Sampling(temperature=0.8, top_p=0.95),
        "stopping": Stopping(max_new_tokens=16),
    }
    return Request(**fields | changes)  # type: ignore[arg-type]


def ended(engine: NativeEngine) -> dict[int, Finished]:
    return {each.id: each for each in engine.run() if isinstance(each, Finished)}


@pytest.fixture(scope="module")
def undisturbed(make_engine: MakeEngine) -> dict[int, Finished]:
    engine = make_engine()
    for number in range(10):
        engine.submit(request(number))
    return ended(engine)


@given(
    when=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=12),
    as_bytes=st.booleans(),
    steps_ahead=st.integers(0, 2),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_moved_requests_draw_what_they_would_have_drawn(
    when: list[tuple[int, int]],
    as_bytes: bool,
    steps_ahead: int,
    make_engine: MakeEngine,
    undisturbed: dict[int, Finished],
) -> None:
    here = make_engine(num_host_blocks=400, steps_ahead=steps_ahead, step_tokens=24)
    there = make_engine(num_host_blocks=400, block_size=5, max_running=3)
    for number in range(10):
        here.submit(request(number))
    seen: dict[int, Finished] = {}
    for number, num_steps in when:
        for _ in range(num_steps):
            here.step()
            there.step()
        seen |= {each.id: each for each in (*here.finished(), *there.finished())}  # type: ignore[misc]
        if number in seen:
            continue
        try:
            exported = here.export_request(number)
        except RequestError:
            here, there = there, here
            continue
        there.import_request(Exported.from_bytes(exported.to_bytes()) if as_bytes else exported)
    seen |= ended(here) | ended(there)
    for number, mine in seen.items():
        assert mine.tokens == undisturbed[number].tokens
        assert mine.logprobs == pytest.approx(undisturbed[number].logprobs, abs=1e-4)
        assert mine.cut_logprobs == pytest.approx(undisturbed[number].cut_logprobs, abs=1e-4)
    assert seen.keys() == undisturbed.keys()


def test_kv_arrives_bit_for_bit(make_engine: MakeEngine) -> None:
    here, there = make_engine(), make_engine(num_host_blocks=100, block_size=3)
    here.submit(request(3, stopping=Stopping(max_new_tokens=30, is_length_prescribed=True)))
    for _ in range(6):
        here.step()
    sent = here.export_request(3)
    there.import_request(Exported.from_bytes(sent.to_bytes()))
    assert there.load().num_waiting == 1
    received = there.export_request(3)
    assert sent.kv is not None
    assert received.kv is not None
    assert torch.equal(sent.kv.cpu(), received.kv.cpu())
    assert sent.header == received.header
    assert here.load().kv_tokens == 0
    assert there.load().num_waiting == 0


def test_a_crash_loses_no_draw(make_engine: MakeEngine, undisturbed: dict[int, Finished]) -> None:
    """Prompt and the tokens that were saved give the rest of them."""
    engine = make_engine()
    for number, whole in undisturbed.items():
        saved = whole.tokens[: len(whole.tokens) // 2]
        left = Stopping(max_new_tokens=16 - len(saved))
        engine.submit(request(number, continued=saved, stopping=left))
    for number, rest in ended(engine).items():
        whole = undisturbed[number]
        assert whole.tokens[len(whole.tokens) - len(rest.tokens) :] == rest.tokens


def test_a_resumed_turn_is_one_that_started_from_all_its_tokens(make_engine: MakeEngine) -> None:
    engine, fresh = make_engine(num_blocks=12, num_host_blocks=4), make_engine()
    engine.submit(request(3, holds_turn=True))
    first = ended(engine)[3]
    assert first.is_held
    # Others come by in between, and need the memory.
    for number in (4, 5, 6):
        engine.submit(request(number))
    ended(engine)
    engine.resume(3, (40, 41, 42))
    second = ended(engine)[3]
    fresh.submit(request(3, continued=(*first.tokens, 40, 41, 42)))
    assert second.tokens == ended(fresh)[3].tokens
    engine.abort(3)
    assert engine.load().num_held == 0


@pytest.mark.parametrize("steps_ahead", [0, 2])
def test_a_parked_turn_comes_back_bit_for_bit_and_draws_what_it_would_have_drawn(
    make_engine: MakeEngine, steps_ahead: int
) -> None:
    parks = make_engine(num_blocks=24, num_host_blocks=40, steps_ahead=steps_ahead)
    keeps = make_engine(steps_ahead=steps_ahead)
    begun = (request(3, holds_turn=True), request(6, holds_turn=True))
    for engine in (parks, keeps):
        for each in begun:
            engine.submit(each)
        ended(engine)
    used = parks.load().kv_tokens
    for each in begun:
        parks.park(each.id)
        parks.park(each.id)  # Told twice, it is parked once.
    assert parks.load().num_held == 2
    assert parks.load().kv_tokens < used, "the device has room again"
    for number in (4, 5):
        parks.submit(request(number))  # Others come by, in the blocks that were given up.
    ended(parks)
    parks.check_integrity()
    recomputed_s = parks.load().recompute_s
    # One goes on, of the other every bit is looked at.
    for engine in (parks, keeps):
        engine.resume(3, (40, 41, 42))
    assert ended(parks)[3].tokens == ended(keeps)[3].tokens
    assert parks.load().recompute_s == recomputed_s, "nothing was computed again"
    assert parks.load().kv_moves_s > 0.0
    there, kept = parks.export_request(6), keeps.export_request(6)
    assert there.header.num_computed == kept.header.num_computed > 0
    assert there.kv is not None
    assert kept.kv is not None
    assert torch.equal(there.kv.cpu(), kept.kv.cpu())
    parks.check_integrity()


def test_a_turn_that_finds_no_room_on_the_host_is_computed_again(make_engine: MakeEngine) -> None:
    engine, fresh = make_engine(num_host_blocks=1), make_engine()
    engine.submit(request(3, holds_turn=True))
    first = ended(engine)[3]
    engine.park(3)
    assert engine.load().kv_tokens == 0
    engine.park(99)  # Nobody's.
    engine.resume(3, (40, 41))
    fresh.submit(request(3, continued=(*first.tokens, 40, 41)))
    assert ended(engine)[3].tokens == ended(fresh)[3].tokens
    assert engine.load().recompute_s > 0.0


def test_what_runs_is_not_parked_and_what_is_parked_can_be_aborted(make_engine: MakeEngine) -> None:
    engine = make_engine(num_host_blocks=40)
    engine.submit(request(3, holds_turn=True))
    engine.step()
    engine.park(3)
    assert ended(engine)[3].is_held
    engine.park(3)
    engine.abort(3)
    engine.run()
    engine.check_integrity()
    assert (engine.load().num_held, engine.load().kv_tokens) == (0, 0)
    assert engine.abilities.parks_turns
    assert not make_engine(num_host_blocks=0).abilities.parks_turns


def test_a_turn_has_the_limit_it_is_resumed_with(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prescribed = Stopping(max_new_tokens=4, is_length_prescribed=True)
    engine.submit(request(3, holds_turn=True, stopping=prescribed))
    assert len(ended(engine)[3].tokens) == 4
    engine.resume(3, (40,), 7)
    assert len(ended(engine)[3].tokens) == 7
    engine.resume(3, (41,))
    assert len(ended(engine)[3].tokens) == 7
    engine.resume(3, (42,), 0)
    (failed,) = engine.run()
    assert isinstance(failed, Failed)
    assert "leaves nothing to generate" in failed.message
    assert engine.is_held(3)


def test_a_turn_ends_at_the_strings_it_is_resumed_with(make_engine: MakeEngine) -> None:
    free, cut = make_engine(), make_engine()
    begun = request(3, holds_turn=True, stopping=Stopping(max_new_tokens=4, stop_tokens=()))
    for engine in (free, cut):
        engine.submit(begun)
        ended(engine)
    free.resume(3, (40,), 12, ())
    drawn = ended(free)[3].tokens
    said = "".join(chr(32 + token) for token in drawn)
    cut.resume(3, (40,), 12, (said[4:7],))
    turn = ended(cut)[3]
    assert (turn.tokens, turn.reason) == (drawn[: said.index(said[4:7]) + 3], "stop string")
    cut.resume(3, (42,), 12, ())
    assert ended(cut)[3].reason == "length"


def test_a_request_between_turns_moves_and_draws_what_it_would_have_drawn(make_engine: MakeEngine) -> None:
    here, there, fresh = make_engine(), make_engine(num_host_blocks=100, block_size=3), make_engine()
    here.submit(request(3, holds_turn=True))
    first = ended(here)[3]
    there.import_request(Exported.from_bytes(here.export_request(3).to_bytes()))
    assert here.load().num_held == here.load().kv_tokens == 0
    assert there.load().num_held == 1
    assert there.run() == []
    there.resume(3, (40, 41), 9)
    second = ended(there)[3]
    asked = request(3, continued=(*first.tokens, 40, 41), stopping=Stopping(max_new_tokens=9))
    fresh.submit(asked)
    assert second.tokens == ended(fresh)[3].tokens
    assert there.request(3) == replace(asked.behind(second.tokens, 9), holds_turn=True)


def test_a_request_between_turns_may_be_as_long_as_a_sequence_can_be(make_engine: MakeEngine) -> None:
    here, there = make_engine(max_positions=64), make_engine(num_host_blocks=100, max_positions=64)
    here.submit(request(4, holds_turn=True, stopping=Stopping(max_new_tokens=90, is_length_prescribed=True)))
    assert ended(here)[4].reason == "length"
    there.import_request(here.export_request(4))
    there.check_integrity()
    assert there.load().num_held == 1


def test_branches_of_a_member_draw_differently(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for branch in range(3):
        key = StreamKey(seed=4, row=1, branch=branch)
        engine.submit(replace(request(1, key=key, stopping=Stopping(max_new_tokens=12)), id=branch))
    drawn = {each.tokens for each in ended(engine).values()}
    assert len(drawn) == 3


@pytest.mark.parametrize("data", [b"", b"\x00" * 64, b"not a request at all, but long enough"])
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RequestError, match="no exported request"):
        Exported.from_bytes(data)


def test_an_import_without_room_changes_nothing(make_engine: MakeEngine) -> None:
    here, there = make_engine(), make_engine(num_host_blocks=1)
    here.submit(request(4))
    here.step()
    exported = here.export_request(4)
    with pytest.raises(RequestError, match="no host memory"):
        there.import_request(exported)
    there.check_integrity()
    assert there.load().num_waiting == 0


def test_an_import_that_does_not_belong_here_is_refused_alone(make_engine: MakeEngine) -> None:
    here, there = make_engine(), make_engine(num_host_blocks=100)
    there.submit(request(1))
    here.submit(request(4))
    here.step()
    sent = here.export_request(4)
    assert sent.kv is not None
    unknown = replace(sent.header, request=replace(sent.header.request, version=9))
    for foreign, message in (
        (Exported(header=unknown, kv=sent.kv), "version 9 is not resident"),
        (Exported(header=sent.header, kv=sent.kv[:, :, :-1]), "is not of"),
        (Exported(header=sent.header, kv=sent.kv[:1]), "is not of"),
        (Exported(header=sent.header, kv=sent.kv.bfloat16()), "is not of"),
    ):
        with pytest.raises(RequestError, match=message):
            there.import_request(foreign)
    there.check_integrity()
    there.import_request(sent)
    assert ended(there).keys() == {1, 4}


def test_a_request_that_could_outgrow_the_tables_here_is_refused(make_engine: MakeEngine) -> None:
    here, there = make_engine(), make_engine(num_host_blocks=100, max_positions=64)
    here.submit(request(4, stopping=Stopping(max_new_tokens=100, is_length_prescribed=True)))
    here.step()
    with pytest.raises(RequestError, match="has at most 64 here"):
        there.import_request(here.export_request(4))
    there.check_integrity()
    assert there.load().num_waiting == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logprobs": ()}, "0 log-probabilities"),
        ({"turn_start": 999}, "log-probabilities"),
        ({"cut_logprobs": (0.0,) * 7}, "log-probabilities"),
        ({"max_tokens": 3}, "the turn is over"),
        ({"num_computed": 999}, "does not fit"),
        ({"format": 9}, "format 9"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(
    make_engine: MakeEngine, changes: dict[str, object], message: str
) -> None:
    engine = make_engine()
    engine.submit(request(4, version=0))
    for _ in range(3):
        engine.step()
    sent = engine.export_request(4)
    # As JSON: a record in this process would refuse by itself.
    fields = msgspec.to_builtins(sent.header) | changes
    data = save({}, {HEADER_KEY: msgspec.json.encode(fields).decode()})
    with pytest.raises(RequestError, match=message):
        Exported.from_bytes(data)


def test_resuming_beyond_the_limit_fails_alone_and_keeps_the_turn(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit(request(3, holds_turn=True))
    assert ended(engine)[3].is_held
    engine.submit(request(4))
    engine.resume(3, (5,) * 600)
    failed = [each for each in engine.run() if isinstance(each, Failed)]
    assert [each.id for each in failed] == [3]
    assert "leave none to generate" in failed[0].message
    engine.resume(3, (5, 6))
    assert ended(engine)[3].tokens
