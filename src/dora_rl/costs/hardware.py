"""Named GPUs: vendors' figures, in bytes and seconds. Efficiencies are applied by the cost models."""

from dora_rl.core.errors import ConfigError
from dora_rl.core.record import Record


class GpuModel(Record, frozen=True):
    """The figures of one model of GPU, by its data sheet."""

    name: str
    memory_bytes: float
    bandwidth: float
    """Bytes a second from device memory."""
    flops: float
    """Dense bf16 operations a second."""
    node_link: float
    """Bytes a second and direction to another GPU of the node."""
    cluster_link: float
    """Bytes a second and direction to a GPU of another node."""
    host_link: float = 50e9
    """Bytes a second to host memory."""


_GIB = 2.0**30

GPUS = {
    gpu.name: gpu
    for gpu in (
        GpuModel(name="A100", memory_bytes=80 * _GIB, bandwidth=2.04e12, flops=312e12, node_link=300e9,
                 cluster_link=25e9, host_link=25e9),
        GpuModel(name="H100", memory_bytes=80 * _GIB, bandwidth=3.35e12, flops=989e12, node_link=450e9,
                 cluster_link=50e9),
        GpuModel(name="H800", memory_bytes=80 * _GIB, bandwidth=3.35e12, flops=989e12, node_link=200e9,
                 cluster_link=50e9),
        GpuModel(name="H200", memory_bytes=140 * _GIB, bandwidth=4.8e12, flops=989e12, node_link=450e9,
                 cluster_link=50e9),
        GpuModel(name="H20", memory_bytes=96 * _GIB, bandwidth=4.0e12, flops=148e12, node_link=450e9,
                 cluster_link=50e9),
        GpuModel(name="B200", memory_bytes=180 * _GIB, bandwidth=8.0e12, flops=2250e12, node_link=900e9,
                 cluster_link=50e9),
        GpuModel(name="L40S", memory_bytes=48 * _GIB, bandwidth=0.864e12, flops=362e12, node_link=25e9,
                 cluster_link=12.5e9, host_link=25e9),
        GpuModel(name="RTX4090", memory_bytes=24 * _GIB, bandwidth=1.008e12, flops=165e12, node_link=25e9,
                 cluster_link=3e9, host_link=25e9),
    )
}  # fmt: skip


def gpu_like(device_name: str) -> GpuModel | None:
    """The GPU by a driver's name for it, such as `NVIDIA H200 NVL`; None if it is not known."""
    written = device_name.replace(" ", "").lower()
    return next((GPUS[name] for name in sorted(GPUS, key=len, reverse=True) if name.lower() in written), None)


def find_gpu(name: str) -> GpuModel:
    """The GPU of this name; an error that lists the known ones if there is none."""
    for known, gpu in GPUS.items():
        if known.lower() == name.lower():
            return gpu
    raise ConfigError(f"no GPU named '{name}'", hint=f"known: {', '.join(GPUS)}")
