"""vLLM set up as an instance needs it: in this process, sized to the block, one step at a call.

What reaches behind vLLM's published interface is here, in `keyed_draws`, `parameters` and `vllm_requests`;
docs/engine_vllm.md has the table of what exists in which minor.
"""

import os
from typing import Any

from dora_rl.engines.config import EngineConfig
from dora_rl.engines.protocol import EngineOpening

_CPU_ENVIRONMENT = {
    # Its kernels for CPUs need no compiler, and compiling takes minutes.
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
}
_ENVIRONMENT = {
    # The engine lives in the instance's process: no second one to watch.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The other runner takes no logits processors of one's own.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}


def prepare_environment(device: str) -> None:
    """Set the variables that vLLM reads as it is imported; those that are set already stay.

    It computes on the first GPU that it sees, so it is shown the one of this instance.
    """
    kind, _, number = device.partition(":")
    if kind == "cuda":
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        os.environ["CUDA_VISIBLE_DEVICES"] = seen.split(",")[int(number or 0)] if seen else number or "0"
    for name, value in (_ENVIRONMENT | (_CPU_ENVIRONMENT if device == "cpu" else {})).items():
        os.environ.setdefault(name, value)


def open_library(opening: EngineOpening, kv_bytes: int, *, moves_kv: bool) -> Any:
    """vLLM's LLMEngine with random weights, sized as the plan says; weights come with the first version."""
    import torch
    from vllm import EngineArgs
    from vllm.config import KVTransferConfig
    from vllm.v1.engine.llm_engine import LLMEngine

    from dora_rl.engines.vllm.keyed_draws import KeyedDraws, KeyedSampler

    if opening.device == "cpu":
        _keep_plain_weights()
        torch.set_num_threads(opening.num_threads)
    connector = KVTransferConfig(
        kv_connector="KvMoves",
        kv_connector_module_path="dora_rl.engines.vllm.kv_moves",
        kv_role="kv_both",
    )
    library = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(opening.model),
            skip_tokenizer_init=True,
            load_format="dummy",
            logits_processors=[KeyedDraws],
            kv_transfer_config=connector if moves_kv else None,
            scheduler_cls=_noted_scheduler(opening.config.steps_ahead > 0),
            **_sizes(opening.config, opening.device, kv_bytes),
        )
    )
    runner = library.model_executor.driver_worker.worker.model_runner
    runner.sampler = KeyedSampler(logprobs_mode=runner.sampler.logprobs_mode)
    return library


def _noted_scheduler(is_ahead: bool) -> type:
    """vLLM's scheduler, whose last plan can be looked at."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    base: Any = AsyncScheduler if is_ahead else Scheduler

    class NotedScheduler(base):  # type: ignore[misc]
        """Keeps the plan of the last step."""

        plan: Any = None

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            self.plan = super().schedule(*args, **kwargs)
            return self.plan

    return NotedScheduler


def _sizes(config: EngineConfig, device: str, kv_bytes: int) -> dict[str, Any]:
    limits, own = config.limits, {}
    if device != "cpu":
        import torch

        # What vLLM asks to be free as it starts; the rest of the device is others'.
        _, total_bytes = torch.cuda.mem_get_info()
        own["gpu_memory_utilization"] = min(0.95, config.device_bytes / total_bytes)
    return own | {
        "dtype": config.dtype,
        "max_model_len": limits.max_positions,
        "block_size": limits.block_size,
        # One block is vLLM's own, for tokens that are nobody's.
        "num_gpu_blocks_override": limits.num_blocks + 1,
        "kv_cache_memory_bytes": kv_bytes,
        "max_num_seqs": limits.max_running,
        "max_num_batched_tokens": limits.step_tokens,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "async_scheduling": config.steps_ahead > 0,
        "enforce_eager": device == "cpu",
        "generation_config": "vllm",
        "disable_log_stats": True,
    }


def _keep_plain_weights() -> None:
    """Have linear layers multiply by their parameters, not by copies in a kernel's own layout.

    A copy would keep the old version when parameters are changed: that of a tied head is made before it has
    the embedding's weights.
    """
    import vllm._custom_ops
    from vllm.model_executor.layers import utils

    vllm._custom_ops._supports_onednn = False
    utils.check_cpu_sgl_kernel = lambda *args, **kwargs: False
