"""Launches captured once and replayed.

At small batches the host could not launch as fast as the GPU finishes. A capture takes the host as long as a
launch does, in which the GPU has nothing to do: so it must be worth it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from dora_rl.engines.native.cuda.kernels.decode import Split
from dora_rl.engines.native.cuda.plan_buffers import Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Everything that decides what a launch does, apart from the place of its weights and device memory."""

    kind: Literal["decode", "prefill", "draw"]
    room: Room
    sizes: tuple[int, ...]
    """Sizes of the launch; a smaller one may be filled up to these."""
    split: Split | None = None
    has_guesses: bool = False
    """Whether several tokens of a sequence are decoded: their keys are stored before any of them attends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """The larger shape that a shape is filled up to while it is not worth a graph of its own."""

    shape: Callable[[], Shape]
    """Makes the larger shape, which serves many smaller ones."""
    times: int


class Graphs:
    """Captured launches of one stream, by the place of the weights they read and by their shape."""

    def __init__(self, stream: torch.cuda.Stream | None, launched: set[Shape]) -> None:
        self._graphs: defaultdict[int, dict[Shape, torch.cuda.CUDAGraph]] = defaultdict(dict)
        self._filled = Counter[tuple[int, Shape]]()
        self._failed: list[torch.cuda.CUDAGraph] = []
        self._stream = stream
        self._launched = launched
        """Shapes whose kernels are compiled, on whichever stream: a capture should not compile."""
        if stream is not None:
            _make_workspace(stream)

    def run(
        self, place: int, shape: Shape, launch: Callable[[Shape], None], filling: Filling | None = None
    ) -> None:
        """Launch a shape, by a graph from the second time on."""
        graphs = self._graphs[place]
        graph = graphs.get(shape)
        if graph is None and filling is not None and self._filled[place, shape] < filling.times:
            self._filled[place, shape] += 1
            shape = filling.shape()
            graph = graphs.get(shape)
        if graph is None and (self._stream is None or shape not in self._launched):
            launch(shape)
            self._launched.add(shape)
            return
        if graph is None:
            graph = graphs[shape] = self._captured(partial(launch, shape))
        graph.replay()

    def _captured(self, launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
        assert self._stream is not None, "graphs are of a stream"
        try:
            return self._attempted(launch, self._stream)
        except torch.OutOfMemoryError:
            # While it captures, torch does not give back what it keeps unused: have it do so, and try again.
            torch.cuda.synchronize(self._stream.device)
            torch.cuda.empty_cache()
            return self._attempted(launch, self._stream)

    def _attempted(self, launch: Callable[[], None], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        """Capture a launch without `torch.cuda.graph`, which gives all unused memory back before each
        capture.

        That takes longer than the capture, and the memory is asked for again at once.
        """
        graph = torch.cuda.CUDAGraph()
        other = next((each for graphs in self._graphs.values() for each in graphs.values()), None)
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=other.pool() if other else None, capture_error_mode="thread_local")
            try:
                launch()
            except BaseException:
                # With it would go the library's workspace of this stream, which all others use.
                self._failed.append(graph)
                with suppress(RuntimeError):  # It may say that nothing whole was captured, which is known.
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph


def _make_workspace(stream: torch.cuda.Stream) -> None:
    """Have the library make its workspace of a stream now, and not inside the first capture."""
    with torch.cuda.stream(stream):
        one = torch.ones(1, 1, device=stream.device)
        torch.addmm(one[0], one, torch.mm(one, one))
