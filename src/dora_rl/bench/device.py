"""The device a benchmark runs on: its kind, its clock, the engine's backend for it."""

import time
from importlib import import_module
from typing import Literal

import torch

from dora_rl.core.errors import UserError
from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.cpu_executor import CPU

DeviceKind = Literal["cpu", "cuda"]


def synchronised_s(device: str | torch.device) -> float:
    """The host's clock in seconds, once the device has done everything it was told."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def backend_of(device: DeviceKind) -> Backend:
    """The native engine's backend of a kind of device."""
    if device == "cpu":
        return CPU
    if not torch.cuda.is_available():
        raise UserError("there is no CUDA device here", hint="--device cpu")
    # By name: its kernels are compiled by a package that is there only where a GPU is.
    backend: Backend = import_module("dora_rl.engines.native.cuda").CUDA
    return backend
