"""The GPU as a backend of the native engine: its executor, and the memory it needs."""

import torch

from dora_rl.core.errors import ConfigError
from dora_rl.engines.config import EngineConfig
from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.cuda.cuda_executor import CudaExecutor, buffer_bytes
from dora_rl.engines.native.engine_memory import parameter_bytes, serving_dtype
from dora_rl.model.config import ModelConfig

_GRAPH_BYTES = 512 * 2**20
"""Bytes set aside for captured launches and the library's own workspaces."""


def workspace_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Bytes of the buffers of a step, of graphs, and of one version on its way into its place."""
    return buffer_bytes(model, config) + parameter_bytes(model, serving_dtype(config)) + _GRAPH_BYTES


def check_model(model: ModelConfig, config: EngineConfig) -> None:
    """Refuse a model that the kernels do not compute: they are made for the layers of Llama and Qwen."""
    if config.records_experts:
        raise ConfigError(
            "trainer.router_replay: on a GPU the native engine does not record experts", hint="leave it out"
        )
    lacking = list(model.unusual)
    if model.sliding_layers and model.window is not None and model.window < config.limits.max_positions:
        lacking.append(f"a window of {model.window} tokens for sequences of {config.limits.max_positions}")
    if lacking:
        raise ConfigError(
            f"the native engine does not serve {model.facts.architecture} on a GPU: its kernels lack "
            f"{', '.join(lacking)}",
            hint="it does on the CPU; the trainer works on both",
        )


def backend_on(device: str) -> Backend:
    """The backend with the same kernels on a device: a GPU, or, under Triton's interpreter, the CPU."""
    return Backend(
        torch_device=device,
        make_device=lambda model, config: CudaExecutor(model, config, torch.device(device)),
        prepared_bytes=lambda model, config: 0,
        workspace_bytes=workspace_bytes,
        check_model=check_model,
    )


CUDA = backend_on("cuda")
