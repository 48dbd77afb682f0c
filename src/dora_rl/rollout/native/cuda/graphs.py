"""Launches captured once and replayed.

At small batches the host could not launch as fast as the GPU finishes.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress

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
        if self._stream is None:
            return
        try:
            self._graphs[key] = self._captured(launch, self._stream)
        except torch.OutOfMemoryError:
            # While it captures, torch does not give back what it keeps unused: have it do so, and try again.
            torch.cuda.synchronize(self._stream.device)
            torch.cuda.empty_cache()
            self._graphs[key] = self._captured(launch, self._stream)

    def _captured(self, launch: Callable[[], None], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        """Without `torch.cuda.graph`, which gives all unused memory back before each capture.

        That takes longer than the capture, and the memory is asked for again at once.
        """
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                launch()
            except BaseException:
                with suppress(RuntimeError):  # It says that nothing whole was captured, which is known.
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph
