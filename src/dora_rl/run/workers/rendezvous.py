"""How the ranks of a trainer find each other: through a file, and over nothing but loopback."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from dora_rl.core.errors import ConfigError
from dora_rl.run.run_setup import DeviceLayout
from dora_rl.trainer.ranks import Alone, Ranks, Together

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def join(devices: DeviceLayout, rank: int, *, rendezvous: Path, timeout_s: float) -> Ranks:
    """Become one of the trainer's ranks; returns when all are. No collective waits beyond `timeout_s`."""
    size = devices.trainer_ranks
    if size == 1:
        return Alone()
    device = torch.device(devices.rank_device(rank))
    if device.type == "cuda":
        _check_gpus(devices)
        torch.cuda.set_device(device)
    # Whatever else is configured on this machine: nothing listens where others can reach it.
    os.environ |= {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK}
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.FileStore(str(rendezvous), size),  # type: ignore[attr-defined]
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    return Together()


def _check_gpus(devices: DeviceLayout) -> None:
    found, last = torch.cuda.device_count(), devices.rank_device(devices.trainer_ranks - 1)
    if int(last.partition(":")[2]) >= found:
        raise ConfigError(
            f"{devices.trainer_ranks} ranks from {devices.rank_device(0)} on need {last}, "
            f"but torch sees {found} GPUs here",
            hint="lower devices.trainer_ranks, or name an earlier devices.trainer_device",
        )
