"""The device option that the benchmarks share."""

from enum import StrEnum


class BenchDevice(StrEnum):
    """The kind of device a benchmark runs on, as an option."""

    CPU = "cpu"
    CUDA = "cuda"
