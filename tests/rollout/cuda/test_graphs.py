"""When a launch is made, captured, or filled up to a larger one."""

from typing import Any, cast

import pytest
import torch

from dora_rl.rollout.native.cuda.graphs import PATIENCE, Graphs, Shape


class _Log:
    """Graphs that write down what would have happened on a device."""

    def __init__(self, launched: set[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
        self.happened: list[str] = []
        self.graphs = Graphs(cast(torch.cuda.Stream, object()), launched)
        self._now = ""
        monkeypatch.setattr(self.graphs, "_captured", self._captured)

    def run(self, place: int, shape: Shape) -> list[str]:
        self.happened, self._now = [], f"{place}: {shape.kind} {shape.sizes}"
        self.graphs.run(place, shape, lambda: self.happened.append("launch " + self._now))
        return self.happened

    def _captured(self, launch: object) -> Any:
        self.happened.append("capture " + self._now)
        return _Graph(self.happened, self._now, self)


class _Graph:
    def __init__(self, happened: list[str], name: str, log: _Log) -> None:
        self._name, self._log = name, log

    def replay(self) -> None:
        self._log.happened.append("replay " + self._name)


def rows(count: int) -> Shape:
    return Shape("decode", (count,))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> _Log:
    return _Log(set(), monkeypatch)


def test_a_shape_is_launched_once_and_then_captured_for_each_place(log: _Log) -> None:
    assert log.run(0, rows(8)) == ["launch 0: decode (8,)"]
    assert log.run(0, rows(8)) == ["capture 0: decode (8,)", "replay 0: decode (8,)"]
    assert log.run(0, rows(8)) == ["replay 0: decode (8,)"]
    assert log.run(1, rows(8)) == ["capture 1: decode (8,)", "replay 1: decode (8,)"]


def test_streams_share_what_was_launched_but_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = set[Shape]()
    one, other = _Log(launched, monkeypatch), _Log(launched, monkeypatch)
    one.run(0, rows(8))
    assert other.run(0, rows(8))[0] == "capture 0: decode (8,)"
    assert one.run(0, rows(8))[0] == "capture 0: decode (8,)"


def test_a_shape_is_filled_up_to_the_least_larger_one_until_it_is_worth_a_graph(log: _Log) -> None:
    for count in (20, 32):
        log.run(0, rows(count))
        log.run(0, rows(count))
    for _ in range(PATIENCE):
        assert log.run(0, rows(16)) == ["replay 0: decode (20,)"]
    assert log.run(0, rows(16)) == ["launch 0: decode (16,)"]
    assert log.run(0, rows(16)) == ["capture 0: decode (16,)", "replay 0: decode (16,)"]


def test_nothing_is_filled_up_across_places_kinds_or_by_too_much(log: _Log) -> None:
    log.run(0, rows(32))
    log.run(0, rows(32))
    assert log.run(0, rows(15)) == ["launch 0: decode (15,)"]
    assert log.run(0, Shape("draw", (32,))) == ["launch 0: draw (32,)"]
    assert log.run(1, rows(31)) == ["launch 1: decode (31,)"]


def test_every_size_has_to_do() -> None:
    wide = Shape("prefill", (512, 8))
    assert wide.does_for(Shape("prefill", (448, 7)))
    assert not wide.does_for(Shape("prefill", (448, 9)))


def test_without_a_stream_everything_is_launched() -> None:
    graphs, launched = Graphs(None, set()), list[int]()
    for count in range(3):
        graphs.run(0, rows(8), lambda count=count: launched.append(count))
    assert launched == [0, 1, 2]
