"""Which kernels a train step spends its time in."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from dora_rl.core.record import Record


class Kernel(Record, frozen=True):
    """All calls of one kernel in one step."""

    name: str
    total_s: float
    count: int


def kernels_of(run: Callable[[], object], device: torch.device, *, most: int = 25) -> tuple[Kernel, ...]:
    """The kernels of one run that took longest; operators on the CPU."""
    is_cuda = device.type == "cuda"
    activity = ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        run()
        if is_cuda:
            torch.cuda.synchronize()
    found = [
        Kernel(
            name=each.key,
            total_s=(each.self_device_time_total if is_cuda else each.self_cpu_time_total) / 1e6,
            count=each.count,
        )
        for each in profiled.key_averages()
    ]
    return tuple(sorted(found, key=lambda kernel: -kernel.total_s)[:most])
