"""The engine for models that transformers opens: the native engine's loop over transformers' modules.

Where a model's attention can be ours, it has the scheduler, the paged cache and the keyed draws of the native
engine, and so all it can do but batch invariance. Others have a state of their own, and are generated one
sequence after the other. It runs on CPUs.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor

from dora_rl.core.errors import ConfigError, ModelError
from dora_rl.engines.config import EngineConfig
from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.cpu_executor import CpuExecutor, cpu_workspace_bytes
from dora_rl.engines.native.engine_memory import serving_dtype
from dora_rl.engines.native.engine_size import size_engine
from dora_rl.engines.native.kind import stops_of
from dora_rl.engines.native.native_engine import NativeEngine
from dora_rl.engines.native.whole_executor import WholeExecutor
from dora_rl.engines.protocol import EngineDemand, EngineOpening, EngineSize
from dora_rl.model.hf.hf_decoder import HfDecoder
from dora_rl.model.hf.hf_model import HfModel, read_hf_model

_NAME = "engine.kind=transformers"


class TransformersKind:
    """The kind `transformers`. Implements EngineKind."""

    def size(self, demand: EngineDemand) -> EngineSize:
        """Size an engine as a native one of the same shape; a ConfigError for what it cannot do."""
        if demand.device != "cpu":
            raise ConfigError(
                f"{_NAME} generates on CPUs only", hint="set devices.kind=cpu, or name another engine"
            )
        if demand.recipe.engine.batch_invariant:
            raise ConfigError(
                f"{_NAME} cannot make tokens independent of their batch",
                hint="set engine.batch_invariant=false",
            )
        if not isinstance(demand.model, HfModel):
            raise ConfigError(
                f"{_NAME} serves what transformers trains, and trainer.model is native",
                hint="set trainer.model=transformers, or leave both out",
            )
        if demand.model.why_whole is None:
            return size_engine(demand, BACKEND)
        engine = demand.recipe.engine
        if engine.guessed_tokens or engine.host_kv_tokens:
            raise ConfigError(
                f"{_NAME} neither guesses tokens nor parks KV for this model: {demand.model.why_whole}",
                hint="leave engine.guessed_tokens and engine.host_kv_tokens out",
            )
        settled = replace(demand.recipe, engine=replace(engine, host_kv_tokens=0))
        return size_engine(replace(demand, recipe=settled), WHOLE)

    def open(self, opening: EngineOpening) -> NativeEngine:
        """Open the engine; no version is resident yet."""
        torch.set_num_threads(opening.num_threads)
        model = read_hf_model(opening.model)
        engine = NativeEngine(
            model,
            opening.config,
            stops_of(opening.stop_tokens, opening.tokenizer),
            backend=BACKEND if model.why_whole is None else WHOLE,
            source=opening.versions,
        )
        print(f"memory, before the first version:\n{engine.ledger}", flush=True)
        return engine


def _load(directory: Path, device: str, dtype: torch.dtype) -> HfDecoder:
    return HfDecoder.load(read_hf_model(directory), device=device, dtype=dtype)


@torch.no_grad()
def _make(model: HfModel, tensors: Mapping[str, Tensor], device: str, dtype: torch.dtype) -> HfDecoder:
    # What is no weight comes from the directory that the run began with.
    decoder = HfDecoder.load(model, device=device, dtype=dtype)
    own = dict(decoder.named_parameters())
    if different := sorted(own.keys() ^ tensors.keys()):
        raise ModelError(f"'{different[0]}' is in only one of version and model")
    for name, tensor in tensors.items():
        own[name].copy_(tensor)
    return decoder


def _head_bytes(model: HfModel, config: EngineConfig) -> int:
    """Bytes of the head in float32, beside the one of the version."""
    return 4 * model.vocab_size * model.hidden_size * (serving_dtype(config) != torch.float32)


BACKEND = Backend(
    torch_device="cpu",
    make_device=CpuExecutor,
    prepared_bytes=_head_bytes,
    workspace_bytes=cpu_workspace_bytes,
    load=_load,
    make=_make,
)
WHOLE = Backend(
    torch_device="cpu",
    make_device=WholeExecutor,
    prepared_bytes=lambda model, config: 0,
    workspace_bytes=cpu_workspace_bytes,
    is_paged=False,
    load=_load,
    make=_make,
)
"""For models that keep a state of their own."""
TRANSFORMERS = TransformersKind()
