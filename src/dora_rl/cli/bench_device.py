"""Where a benchmark runs."""

from enum import StrEnum


class BenchDevice(StrEnum):
    """A kind of device, as an option."""

    CPU = "cpu"
    CUDA = "cuda"
