"""When a launch is made, captured, or filled up to a larger one."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch

from dora_rl.rollout.native.cuda.graphs import PATIENCE, Graphs, Shape
from dora_rl.rollout.native.cuda.staging import Room

ROOM = Room(num_rows=64, num_prefilled=512)


def rows(count: int) -> Shape:
    return Shape(kind="decode", room=ROOM, sizes=(count,))


class _Device:
    """Where graphs write down what they do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, launched: set[Shape]) -> None:
        self._said: list[str] = []
        self._graphs = Graphs(cast(torch.cuda.Stream, object()), launched)
        monkeypatch.setattr(self._graphs, "_captured", self._captured)

    def run(self, place: int, shape: Shape, coarse: Shape | None = None) -> list[str]:
        """What happened, each with the sizes it happened to."""
        self._said = []
        self._graphs.run(place, shape, self._launch, None if coarse is None else lambda: coarse)
        return self._said

    def _launch(self, shape: Shape) -> None:
        self._said.append(f"launch {shape.sizes[0]}")

    def _captured(self, launch: partial[None]) -> Any:
        size = launch.args[0].sizes[0]
        self._said.append(f"capture {size}")
        return _Graph(lambda: self._said.append(f"replay {size}"))


class _Graph:
    def __init__(self, replay: Callable[[], None]) -> None:
        self.replay = replay


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> _Device:
    return _Device(monkeypatch, set())


def test_a_shape_is_launched_once_and_then_captured_for_each_place(device: _Device) -> None:
    assert device.run(0, rows(8)) == ["launch 8"]
    assert device.run(0, rows(8)) == ["capture 8", "replay 8"]
    assert device.run(0, rows(8)) == ["replay 8"]
    assert device.run(1, rows(8)) == ["capture 8", "replay 8"]


def test_streams_share_what_was_launched_but_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = set[Shape]()
    one, other = _Device(monkeypatch, launched), _Device(monkeypatch, launched)
    one.run(0, rows(8))
    assert other.run(0, rows(8)) == ["capture 8", "replay 8"]
    assert one.run(0, rows(8)) == ["capture 8", "replay 8"]


def test_a_shape_is_filled_up_to_the_coarse_one_until_it_is_worth_a_graph(device: _Device) -> None:
    happened = [device.run(0, rows(20), coarse=rows(32)) for _ in range(PATIENCE)]
    assert happened[:2] == [["launch 32"], ["capture 32", "replay 32"]]
    assert happened[2:] == [["replay 32"]] * (PATIENCE - 2)
    assert device.run(0, rows(20), coarse=rows(32)) == ["launch 20"]
    assert device.run(0, rows(20), coarse=rows(32)) == ["capture 20", "replay 20"]


def test_a_shape_is_filled_up_to_the_least_that_has_a_graph(device: _Device) -> None:
    for count in (20, 24, 32):
        device.run(0, rows(count))
        device.run(0, rows(count))
    assert device.run(0, rows(18), coarse=rows(32)) == ["replay 20"]
    assert device.run(0, rows(22), coarse=rows(32)) == ["replay 24"]


def test_a_graph_of_another_place_or_kind_does_for_none(device: _Device) -> None:
    device.run(0, rows(32))
    device.run(0, rows(32))
    assert device.run(1, rows(31), coarse=rows(32)) == ["capture 32", "replay 32"]
    draws = Shape(kind="draw", room=ROOM, sizes=(32,))
    assert device.run(0, draws) == ["launch 32"]


def test_what_does_for_a_shape_is_as_large_in_every_size_and_not_twice_as_large() -> None:
    def chunk(*sizes: int) -> Shape:
        return Shape(kind="prefill", room=ROOM, sizes=sizes)

    assert chunk(512, 8).does_for(chunk(448, 7))
    assert not chunk(512, 8).does_for(chunk(448, 9))
    assert not chunk(512, 8).does_for(chunk(255, 4))


def test_without_a_stream_everything_is_launched() -> None:
    graphs, launched = Graphs(None, set()), list[Shape]()
    for _ in range(3):
        graphs.run(0, rows(8), launched.append)
    assert launched == [rows(8)] * 3
