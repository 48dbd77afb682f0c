"""When a launch is made, captured, or filled up to a larger one."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import pytest
import torch

from dora_rl.engines.native.cuda.graphs import Filling, Graphs, Shape
from dora_rl.engines.native.cuda.plan_buffers import Room

ROOM = Room(num_rows=64, num_prefilled=512)
TIMES = 5


def rows(count: int) -> Shape:
    return Shape(kind="decode", room=ROOM, sizes=(count,))


class _Device:
    """Where graphs write down what they do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, launched: set[Shape]) -> None:
        self._said: list[str] = []
        monkeypatch.setattr("dora_rl.engines.native.cuda.graphs._make_workspace", lambda stream: None)
        self._graphs = Graphs(cast(torch.cuda.Stream, object()), launched)
        monkeypatch.setattr(self._graphs, "_captured", self._captured)

    def run(self, place: int, shape: Shape, filled_up_to: Shape | None = None) -> list[str]:
        """What happened, each with the sizes it happened to."""
        self._said = []
        filling = None if filled_up_to is None else Filling(shape=lambda: filled_up_to, times=TIMES)
        self._graphs.run(place, shape, self._launch, filling)
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


def test_a_shape_is_filled_up_until_it_is_worth_a_graph(device: _Device) -> None:
    happened = [device.run(0, rows(20), filled_up_to=rows(32)) for _ in range(TIMES)]
    assert happened[:2] == [["launch 32"], ["capture 32", "replay 32"]]
    assert happened[2:] == [["replay 32"]] * (TIMES - 2)
    assert device.run(0, rows(20), filled_up_to=rows(32)) == ["launch 20"]
    assert device.run(0, rows(20), filled_up_to=rows(32)) == ["capture 20", "replay 20"]
    assert device.run(0, rows(20), filled_up_to=rows(32)) == ["replay 20"]


def test_each_shape_and_place_is_filled_up_as_often(device: _Device) -> None:
    for place in (0, 1):
        for count in (20, 24):
            happened = [device.run(place, rows(count), filled_up_to=rows(32)) for _ in range(TIMES)]
            assert all(each[-1].endswith("32") for each in happened)


def test_a_shape_that_others_are_filled_up_to_has_its_graph_at_once(device: _Device) -> None:
    assert device.run(0, rows(32), filled_up_to=rows(32)) == ["launch 32"]
    assert device.run(0, rows(32), filled_up_to=rows(32)) == ["capture 32", "replay 32"]
    assert device.run(0, rows(17), filled_up_to=rows(32)) == ["replay 32"]


def test_graphs_of_other_kinds_are_others(device: _Device) -> None:
    device.run(0, rows(32))
    assert device.run(0, Shape(kind="draw", room=ROOM, sizes=(32,))) == ["launch 32"]


def test_a_capture_that_runs_out_of_memory_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed graph stays: with it would go what the others of its stream use."""
    monkeypatch.setattr("dora_rl.engines.native.cuda.graphs._make_workspace", lambda stream: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    freed: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append("cache"))
    made: list[_Captured] = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: made.append(_Captured()) or made[-1])
    graphs, attempts = Graphs(cast(torch.cuda.Stream, _Stream()), {rows(8)}), list[int]()

    def launch(shape: Shape) -> None:
        attempts.append(shape.sizes[0])
        if len(attempts) == 1:
            raise torch.OutOfMemoryError("full")

    graphs.run(0, rows(8), launch)
    assert (attempts, freed, [each.num_replays for each in made]) == ([8, 8], ["cache"], [0, 1])
    assert graphs._failed == made[:1]


class _Stream:
    device = "cuda"


class _Captured:
    """A graph that was captured."""

    def __init__(self) -> None:
        self.num_replays = 0

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        """Nothing to begin."""

    def capture_end(self) -> None:
        """Nothing to end."""

    def replay(self) -> None:
        self.num_replays += 1


def test_without_a_stream_everything_is_launched() -> None:
    graphs, launched = Graphs(None, set()), list[Shape]()
    for _ in range(3):
        graphs.run(0, rows(8), launched.append)
    assert launched == [rows(8)] * 3
