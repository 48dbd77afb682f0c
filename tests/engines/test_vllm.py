"""The engine of vLLM beside the native one: the same tokens and log-probabilities, whatever is drawn from.

Needs vLLM; `tests/engines/test_contract.py` holds what it has in common with every engine.
"""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.errors import RequestError
from dora_rl.engines.kinds import load_kind
from dora_rl.engines.native.transfer import Exported, read_exported, write_exported
from dora_rl.engines.protocol import Engine, EngineOpening
from dora_rl.engines.requests import Finished, Request, Sampling, Stopping, StreamKey
from dora_rl.model.load import load_decoder
from dora_rl.weights.store import Store

from .conftest import save_versions

pytest.importorskip("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save_versions(tmp_path_factory, head_dim=32)


@pytest.fixture(scope="module")
def open_kind(versions: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Open:
    """Opens an engine of a kind, with a store that holds all versions; it serves version 0."""
    directory = tmp_path_factory.mktemp("store")
    with Store(directory) as publishing:
        for version, path in enumerate(versions):
            decoder = load_decoder(path, dtype=torch.float32)
            publishing.publish(version, {name: each.detach() for name, each in decoder.named_parameters()})

    def make(kind: str, **sizes: int) -> Any:
        limits = {"num_blocks": 64, "block_size": 32, "max_running": 8, "step_tokens": 64}
        opening = EngineOpening(
            config=EngineConfig(limits=Limits(max_positions=512, **(limits | sizes)), max_versions=1),
            model=versions[0],
            versions=Store(directory),
            stop_tokens=(2,),
        )
        engine = load_kind(kind).open(opening)
        engine.finish_version(engine.begin_version(0))
        return engine

    return make


def asked(id: int, *, version: int = 0, num_tokens: int = 64, **fields: Any) -> Request:
    made: dict[str, Any] = {
        "prompt": tuple(3 + (7 * id + i) % 90 for i in range(5 + 3 * id)),
        "key": StreamKey(seed=5, row=id),
        "stopping": Stopping(max_new_tokens=num_tokens, is_length_prescribed=True),
    }
    return Request(id=id, version=version, **(made | fields))


def run(engine: Engine, *requests: Request) -> dict[int, Finished]:
    for each in requests:
        engine.submit(each)
    while engine.step():
        pass
    ended = {event.id: event for event in engine.finished()}
    assert all(isinstance(event, Finished) for event in ended.values()), ended
    return ended  # type: ignore[return-value]


SAMPLINGS = {
    "plain": Sampling(),
    "cold": Sampling(temperature=0.6),
    "greedy": Sampling(temperature=0.0),
    "cut": Sampling(temperature=1.3, top_k=20, top_p=0.9, min_p=0.02),
}


def test_tokens_and_logprobs_are_those_of_the_native_engine(open_kind: Open) -> None:
    vllm, native = open_kind("vllm"), open_kind("native")
    # All ways of drawing in one batch, and more requests than it has rows.
    requests = [
        asked(number, sampling=sampling)
        for number, (sampling, _) in enumerate(product(SAMPLINGS.values(), range(3)))
    ]
    theirs, ours = run(vllm, *requests), run(native, *requests)
    assert theirs.keys() == ours.keys()
    for id, event in ours.items():
        assert theirs[id].tokens == event.tokens
        assert theirs[id].logprobs == pytest.approx(event.logprobs, abs=2e-4)
        assert theirs[id].cut_logprobs == pytest.approx(event.cut_logprobs, abs=2e-4)
    assert any(event.cut_logprobs for event in ours.values())
    assert len({event.tokens for event in ours.values()}) == len(requests)


def test_preempted_requests_draw_the_same_tokens(open_kind: Open) -> None:
    requests = [asked(number, num_tokens=150) for number in range(6)]
    roomy, tight = open_kind("vllm"), open_kind("vllm", num_blocks=16)
    whole, pressed = run(roomy, *requests), run(tight, *requests)
    assert [pressed[id].tokens for id in pressed] == [whole[id].tokens for id in pressed]
    assert tight.load().num_preempted > 0 == roomy.load().num_preempted
    assert tight.load().recompute_s > 0


def test_a_newer_version_is_a_change_in_place_with_the_native_engines_tokens(open_kind: Open) -> None:
    vllm, native = open_kind("vllm"), open_kind("native")
    vllm.finish_version(vllm.begin_version(1, (0,)))
    assert vllm._parameters.in_place is not None, "the decoder's parameters were not found in vLLM's model"
    native.drop_version(0)
    native.finish_version(native.begin_version(1))
    requests = [asked(number, version=1) for number in range(4)]
    theirs, ours = run(vllm, *requests), run(native, *requests)
    assert [theirs[id].tokens for id in ours] == [event.tokens for event in ours.values()]


def test_versions_are_the_same_whole_and_as_changes(open_kind: Open) -> None:
    changed, reloaded = open_kind("vllm"), open_kind("vllm")
    for version in (1, 2):
        changed.finish_version(changed.begin_version(version, (version - 1,)))
    reloaded.drop_version(0)
    reloaded.finish_version(reloaded.begin_version(2))
    request = asked(1, version=2)
    assert run(changed, request) == run(reloaded, request)


def test_a_version_whose_reload_fails_half_way_ends_the_engine(
    open_kind: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_kind("vllm")
    reload = engine._parameters._library.collective_rpc

    def broken(method: str, *, kwargs: dict[str, Any]) -> None:
        half = list(kwargs["weights_iterator"])[:5]
        reload(method, kwargs={"weights_iterator": half})
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine._parameters._library, "collective_rpc", broken)
    engine.drop_version(0)
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.finish_version(engine.begin_version(1))
    assert engine.load().versions == ()


def test_a_move_takes_the_kv_along_and_needs_it(open_kind: Open, tmp_path: Path) -> None:
    source, target = open_kind("vllm", num_host_blocks=16), open_kind("vllm", num_host_blocks=16)
    request = asked(1, prompt=tuple(3 + i % 90 for i in range(70)))
    (whole,) = run(source, request).values()
    for zeroed, id in ((False, 2), (True, 3)):
        source.submit(replace(request, id=id))
        for _ in range(30):
            source.step()
        path = tmp_path / f"{id}"
        left = source.export_file(id, path)
        moved = read_exported(path, id)
        assert moved.header.num_computed == 70 + 29
        if zeroed:
            write_exported(Exported(header=moved.header, kv=torch.zeros_like(moved.kv)), path)
        before = target.load()
        target.import_file(id, path)
        while target.step():
            pass
        (event,) = target.finished()
        assert (event.tokens == whole.tokens) != zeroed
        assert event.tokens[: len(left.drawn.tokens)] == left.drawn.tokens
        # Nothing was computed again, and nothing found that was not brought.
        after = target.load()
        assert (after.prefill_s, after.recompute_s) == (before.prefill_s, before.recompute_s)
        assert after.num_reused == before.num_reused == 0
        # What was brought is as good as computed: the next of the same prompt would find it.
        target.drop_version(0)
        target.finish_version(target.begin_version(0))


def test_kv_that_does_not_fit_is_refused_and_changes_nothing(open_kind: Open, tmp_path: Path) -> None:
    source, target = open_kind("vllm", num_host_blocks=16), open_kind("vllm", num_host_blocks=1)
    source.submit(asked(1, prompt=tuple(range(3, 73))))
    for _ in range(5):
        source.step()
    path = tmp_path / "moved"
    source.export_file(1, path)
    with pytest.raises(RequestError, match="3 KV blocks would wait; 1 may"):
        target.import_file(1, path)
    moved = read_exported(path, 1)
    write_exported(Exported(header=moved.header, kv=moved.kv[:1]), path)
    with pytest.raises(RequestError, match="is not of 73 tokens of this engine"):
        source.import_file(1, path)
    for engine in (source, target):
        assert engine.load().num_running + engine.load().num_waiting == 0
        assert len(run(engine, asked(2))[2].tokens) == 64


def test_members_of_a_group_share_their_prompt_and_versions_do_not(open_kind: Open) -> None:
    engine = open_kind("vllm")
    prompt = tuple(3 + i % 90 for i in range(100))
    first = run(engine, asked(1, prompt=prompt, num_tokens=4))
    run(engine, asked(2, prompt=prompt, num_tokens=4))
    assert engine.load().num_reused == 96
    engine.finish_version(engine.begin_version(1, (0,)))
    other = run(engine, asked(1, version=1, prompt=prompt, num_tokens=4))
    assert engine.load().num_reused == 96
    assert other[1].tokens != first[1].tokens
