"""What every engine promises, whatever it is made of: the same tests over all of them.

What an engine does not declare is skipped, or refused by it as it should be.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from dora_rl.bench.tiny_models import save_tiny_hf
from dora_rl.core.errors import DoraError, UserError
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.errors import EngineError
from dora_rl.engines.kinds import load_kind
from dora_rl.engines.protocol import Engine, EngineOpening
from dora_rl.engines.requests import Event, Failed, Finished, Request, Sampling, Stopping, StreamKey
from dora_rl.model.language_model import Computing, load_model
from dora_rl.weights.store import Store

from .conftest import save_versions

SCRIPTED = f"{Path(__file__).with_name('scripted.py')}:SCRIPTED"
Open = Callable[[], Engine]


VLLM_MARKS = [pytest.mark.vllm, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


class Case(NamedTuple):
    """An engine under test: its kind, and what it is opened with."""

    kind: str
    max_versions: int = 1
    head_dim: int = 16
    block_size: int = 8
    family: str | None = None
    """A family of transformers that the native decoder does not know; None for a tiny Qwen3."""


CASES = [
    pytest.param(Case("native", max_versions=4), id="native"),
    pytest.param(Case("transformers", max_versions=4), id="transformers"),
    pytest.param(Case("transformers", max_versions=4, family="gpt2"), id="transformers-gpt2"),
    pytest.param(Case("transformers", max_versions=4, family="qwen3_next"), id="transformers-hybrid"),
    pytest.param(Case(SCRIPTED), id="scripted"),
    pytest.param(Case("vllm", head_dim=32, block_size=32), id="vllm", marks=VLLM_MARKS),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str | None], list[Path]]:
    """Makes the versions of a tiny model with heads of that size, once."""

    @cache
    def make(head_dim: int, family: str | None) -> list[Path]:
        if family is None:
            return save_versions(tmp_path_factory, head_dim=head_dim)
        return [save_tiny_hf(family, tmp_path_factory.mktemp(family), seed) for seed in range(3)]

    return make


@pytest.fixture(scope="module")
def stores(
    models: Callable[[int, str | None], list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str | None, Computing], Path]:
    """Publishes all versions of such a model by the names of whoever computes it, once."""

    @cache
    def make(head_dim: int, family: str | None, computing: Computing) -> Path:
        directory = tmp_path_factory.mktemp("store")
        with Store(directory) as publishing:
            for version, path in enumerate(models(head_dim, family)):
                decoder = load_model(path, computing, dtype=torch.float32)
                tensors = {name: each.detach() for name, each in decoder.named_parameters()}
                publishing.publish(version, tensors)
        return directory

    return make


@pytest.fixture(params=CASES)
def open_engine(
    request: pytest.FixtureRequest,
    models: Callable[[int, str | None], list[Path]],
    stores: Callable[[int, str | None, Computing], Path],
) -> Open:
    """Opens engines of one kind that serve version 0."""
    case: Case = request.param
    if case.kind == "vllm":
        pytest.importorskip("vllm")
    computing: Computing = "transformers" if case.kind == "transformers" else "native"
    limits = Limits(
        num_blocks=64,
        block_size=case.block_size,
        max_running=8,
        step_tokens=32,
        max_positions=128,
        num_host_blocks=32,
    )
    opening = EngineOpening(
        config=EngineConfig(limits=limits, max_versions=case.max_versions),
        model=models(case.head_dim, case.family)[0],
        versions=Store(stores(case.head_dim, case.family, computing)),
        stop_tokens=(2,),
    )

    def make() -> Engine:
        engine = load_kind(case.kind).open(opening)
        engine.finish_version(engine.begin_version(0))
        return engine

    return make


@pytest.fixture
def engine(open_engine: Open) -> Engine:
    return open_engine()


def asked(id: int, *, num_tokens: int = 12, row: int | None = None, **fields: Any) -> Request:
    """A request of prescribed length, so that tests know how long it takes."""
    made: dict[str, Any] = {
        "version": 0,
        "prompt": (5, 9, 11, 17),
        "key": StreamKey(seed=7, row=id if row is None else row),
        "sampling": Sampling(),
        "stopping": Stopping(max_new_tokens=num_tokens, is_length_prescribed=True),
    }
    return Request(id=id, **(made | fields))


def run(engine: Engine, *requests: Request) -> dict[int, Event]:
    for each in requests:
        engine.submit(each)
    while engine.step():
        pass
    return {event.id: event for event in engine.finished()}


def tokens_of(engine: Engine, request: Request) -> tuple[int, ...]:
    event = run(engine, request)[request.id]
    assert isinstance(event, Finished), event
    return event.tokens


# --- generating ---------------------------------------------------------------------------------


def test_every_request_ends_once_with_a_logprob_for_each_token(engine: Engine) -> None:
    requests = [asked(number, num_tokens=3 + number) for number in range(20)]
    ended = run(engine, *requests)
    assert sorted(ended) == list(range(20))
    for number, event in ended.items():
        assert isinstance(event, Finished)
        assert (len(event.tokens), len(event.logprobs), event.reason) == (3 + number, 3 + number, "length")
        assert all(each <= 0 for each in event.logprobs)
    assert engine.finished() == []
    assert (engine.load().num_running, engine.load().num_waiting) == (0, 0)


def test_a_stop_token_ends_a_turn(engine: Engine) -> None:
    whole = tokens_of(engine, asked(1, num_tokens=30))
    stop = whole[4]
    num_tokens = whole.index(stop) + 1
    # Also where the length would have ended it with the same token.
    for id, most in ((2, 30), (3, num_tokens)):
        stopping = Stopping(max_new_tokens=most, stop_tokens=(stop,))
        (event,) = run(engine, asked(id, row=1, stopping=stopping)).values()
        assert isinstance(event, Finished)
        assert event.reason == "stop token"
        assert event.tokens == whole[:num_tokens]


def test_draws_are_keyed(engine: Engine) -> None:
    if not engine.abilities.keys_draws:
        pytest.skip("not declared")
    alone = tokens_of(engine, asked(1))
    among = run(engine, *(asked(number) for number in range(1, 7)))[1]
    assert isinstance(among, Finished)
    assert among.tokens == alone
    assert tokens_of(engine, asked(9, row=1)) == alone
    assert tokens_of(engine, asked(1, row=2)) != alone


def test_an_aborted_request_leaves_with_what_it_drew(engine: Engine) -> None:
    engine.submit(asked(1, num_tokens=30))
    for _ in range(6):
        engine.step()
    drawn = engine.drawn(1)
    engine.abort(1)
    (event,) = engine.finished()
    assert isinstance(event, Finished)
    assert event.reason == "aborted"
    assert drawn is not None
    assert event.tokens[: len(drawn.tokens)] == drawn.tokens
    assert engine.drawn(1) is None
    while engine.step():
        pass
    assert engine.load().num_running == 0
    assert len(tokens_of(engine, asked(2))) == 12


def test_what_is_told_in_pieces_is_the_whole(engine: Engine) -> None:
    engine.submit(asked(1, num_tokens=25))
    pieces: list[int] = []
    while engine.step():
        if (drawn := engine.drawn(1, len(pieces))) is not None:
            assert len(drawn.logprobs) == len(drawn.tokens)
            pieces += drawn.tokens
    (event,) = engine.finished()
    assert isinstance(event, Finished)
    assert tuple(pieces) + event.drawn.since(len(pieces)).tokens == event.tokens
    assert pieces, "nothing was told before the end"


def test_a_request_goes_on_behind_its_tokens(engine: Engine) -> None:
    if not engine.abilities.continues:
        pytest.skip("not declared")
    whole = tokens_of(engine, asked(1))
    stopping = Stopping(max_new_tokens=7, is_length_prescribed=True)
    assert tokens_of(engine, asked(2, row=1, continued=whole[:5], stopping=stopping)) == whole[5:]


def test_the_clock_gains_one_a_token_and_a_request_is_given_back_as_it_was(engine: Engine) -> None:
    before, request = engine.load().clock, asked(1, num_tokens=10)
    engine.submit(request)
    assert engine.request(1) == request
    while engine.step():
        pass
    engine.finished()
    assert engine.load().clock - before == 10
    assert (engine.load().round_s or 0) > 0


# --- versions -----------------------------------------------------------------------------------


def test_a_version_is_loaded_in_place_of_another(engine: Engine) -> None:
    under_0 = tokens_of(engine, asked(1))
    engine.finish_version(engine.begin_version(1, (0,)))
    assert engine.load().versions == (1,)
    assert tokens_of(engine, asked(1, version=1)) != under_0
    engine.finish_version(engine.begin_version(0, (1,)))
    assert tokens_of(engine, asked(1)) == under_0


def test_generation_goes_on_while_a_version_is_read(engine: Engine) -> None:
    whole = tokens_of(engine, asked(1))
    engine.submit(asked(2, row=1))
    load = engine.begin_version(1, (0,))
    assert load.version == 1
    while engine.step():
        pass
    (event,) = engine.finished()
    assert isinstance(event, Finished)
    assert event.tokens == whole
    engine.finish_version(load)
    assert engine.load().versions == (1,)


def test_no_more_versions_are_held_than_declared(engine: Engine) -> None:
    most = engine.abilities.max_versions
    for version in range(1, min(most, 3)):
        engine.finish_version(engine.begin_version(version))
    assert len(engine.load().versions) == min(most, 3)
    if most == 1:
        with pytest.raises(EngineError):
            engine.finish_version(engine.begin_version(1))
        assert engine.load().versions == (0,)


def test_a_version_in_use_is_not_dropped_and_one_that_is_not_there_serves_nobody(engine: Engine) -> None:
    engine.submit(asked(1, num_tokens=30))
    engine.step()
    with pytest.raises(EngineError):
        engine.drop_version(0)
    assert len(tokens_of(engine, asked(2))) == 12
    engine.drop_version(0)
    assert engine.load().versions == ()
    assert isinstance(run(engine, asked(3))[3], Failed)


def test_a_load_that_fails_leaves_everything_as_it_was(engine: Engine) -> None:
    whole = tokens_of(engine, asked(1))
    with pytest.raises(DoraError):
        engine.finish_version(engine.begin_version(99, (0,)))
    assert engine.load().versions == (0,)
    assert tokens_of(engine, asked(1)) == whole
    engine.finish_version(engine.begin_version(1, (0,)))
    assert engine.load().versions == (1,)


# --- abilities ----------------------------------------------------------------------------------


def test_a_held_turn_is_resumed_where_that_is_declared(engine: Engine) -> None:
    event = run(engine, asked(1, num_tokens=6, holds_turn=True))[1]
    if not engine.abilities.holds_turns:
        assert isinstance(event, Failed)
        return
    assert isinstance(event, Finished)
    assert event.is_held
    engine.resume(1, (4, 8))
    while engine.step():
        pass
    (again,) = engine.finished()
    assert isinstance(again, Finished)
    assert len(again.tokens) == 6
    engine.abort(1)


def test_a_moved_request_draws_what_it_would_have_drawn(open_engine: Open, tmp_path: Path) -> None:
    source, target, path = open_engine(), open_engine(), tmp_path / "request"
    if not source.abilities.moves_kv:
        source.submit(asked(1))
        with pytest.raises(EngineError):
            source.export_file(1, path)
        return
    whole = tokens_of(source, asked(1))
    source.submit(asked(2, row=1))
    for _ in range(6):
        source.step()
    left = source.export_file(2, path)
    assert left.kv_bytes == path.stat().st_size > 0
    assert source.drawn(2) is None
    arrived = target.import_file(7, path)
    assert (arrived.request, arrived.tokens) == (7, left.drawn.tokens)
    while target.step():
        pass
    (event,) = target.finished()
    assert isinstance(event, Finished)
    assert (event.id, event.tokens) == (7, whole)
    with pytest.raises(EngineError):
        target.import_file(8, tmp_path / "nothing")


def test_abilities_become_what_control_is_told(engine: Engine) -> None:
    abilities = engine.abilities
    spec = abilities.instance_spec(Limits(num_blocks=10, block_size=4, max_running=3), is_elastic=True)
    assert (spec.slots, spec.kv_tokens, spec.elastic) == (3, 40, True)
    assert (spec.max_versions, spec.moves_kv, spec.continues) == (
        abilities.max_versions,
        abilities.moves_kv,
        abilities.continues,
    )


# --- kinds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("nativ", "no engine 'nativ'", "did you mean 'native'"),
        ("nowhere:KIND", "no module 'nowhere'", "file.py:object"),
        ("nothing.py:KIND", "no file nothing.py", "check the path"),
        ("json:dumps", "no kind of engine", "docs/extending.md"),
    ],
)
def test_a_kind_that_is_none_is_a_sentence_with_a_hint(name: str, message: str, hint: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        load_kind(name)
    assert hint in (refused.value.hint or "")


def test_a_module_that_cannot_be_imported_is_named_with_its_line(tmp_path: Path) -> None:
    broken = tmp_path / "mine.py"
    broken.write_text("import math\nraise RuntimeError('no device')\n")
    with pytest.raises(UserError, match=r"mine\.py, line 2: RuntimeError: no device"):
        load_kind(f"{broken}:KIND")
