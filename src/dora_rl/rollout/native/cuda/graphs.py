"""Launches captured once and replayed.

At small batches the host could not launch as fast as the GPU finishes.
"""

from collections.abc import Callable, Hashable

import torch


class Graphs:
    """Captured launches of one stream by key.

    Whatever decides what a launch does must be in its key or in device memory.
    """

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._stream = stream

    def run(self, key: Hashable, launch: Callable[[], None]) -> None:
        """Do what `launch` does; the first time by calling it, which also compiles what it needs."""
        if graph := self._graphs.get(key):
            graph.replay()
            return
        launch()
        if self._stream is not None:
            self._graphs[key] = self._captured(launch, self._stream)

    def _captured(self, launch: Callable[[], None], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        # Not `torch.cuda.graph`: it waits for the device and gives all unused memory back first, which takes
        # longer than a capture and is asked for again at once.
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                launch()
            finally:
                graph.capture_end()
        return graph
