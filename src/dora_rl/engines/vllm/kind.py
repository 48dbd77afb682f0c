"""vLLM as a kind of engine: sized without it, opened with it in the process of the instance."""

from msgspec.structs import replace

from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.engine_memory import parameter_bytes, serving_dtype
from dora_rl.engines.native.engine_size import (
    least_blocks,
    longest_sequence,
    steps_ahead,
    too_little,
    wanted_blocks,
)
from dora_rl.engines.native.kind import stops_of
from dora_rl.engines.native.paged import PagedCache
from dora_rl.engines.protocol import Engine, EngineDemand, EngineOpening, EngineSize
from dora_rl.engines.vllm.minors import installed_version, tested_abilities
from dora_rl.model.config import ModelConfig
from dora_rl.model.hub_config import read_config

_GIB = 2**30
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256)
"""Head sizes of vLLM's attention on CPUs."""
_CPU_BYTES = int(0.6 * _GIB)
"""What a process with vLLM holds beyond one with torch alone."""
_CUDA_BYTES = int(2.5 * _GIB)
"""The same on a GPU, with its captured graphs."""


class VllmKind:
    """The kind `vllm`. Implements EngineKind."""

    def size(self, demand: EngineDemand) -> EngineSize:
        """Size an engine of one version, after asking whether vLLM is there and can serve the model."""
        abilities = tested_abilities(installed_version())
        if not isinstance(demand.model, ModelConfig):
            raise ConfigError(
                "engine.kind=vllm does not serve what transformers trains: its versions have other names",
                hint="leave engine.kind out",
            )
        check_model(demand.model, demand.device)
        check_settings(demand.recipe, demand.device)
        model, recipe = demand.model, demand.recipe
        positions = longest_sequence(model, demand.longest_prompt, demand.max_new_tokens)
        slots = recipe.cluster.slots
        config = EngineConfig(
            limits=Limits(
                num_blocks=1,
                block_size=recipe.engine.block_size,
                max_running=slots,
                step_tokens=max(recipe.engine.step_tokens, slots),
                max_positions=positions,
            ),
            dtype=recipe.trainer.serving_dtype,
            max_versions=1,
            steps_ahead=steps_ahead(recipe, demand.device),
        )
        dtype = serving_dtype(config)
        version = parameter_bytes(model, dtype)
        workspace = workspace_bytes(model, config, demand.device)
        block = block_bytes(model, config)
        num_blocks = min(
            wanted_blocks(recipe, config.limits), (demand.free_bytes - version - workspace) // block - 1
        )
        least = least_blocks(recipe, config.limits, positions)
        if num_blocks < least:
            raise too_little(version + workspace + (least + 1) * block, demand.free_bytes, 1, demand.note)
        kv = (num_blocks + 1) * block
        # Requests that move between instances wait there.
        moving = num_blocks // 4 if abilities.moves_kv and demand.num_instances > 1 else 0
        if recipe.engine.host_kv_tokens is not None:
            moving = config.limits.blocks_for(recipe.engine.host_kv_tokens)
        if demand.free_host_bytes is not None:
            moving = min(moving, max(0, demand.free_host_bytes) // block)
        return EngineSize(
            config=replace(
                config,
                limits=replace(config.limits, num_blocks=num_blocks, num_host_blocks=moving),
                device_bytes=version + workspace + kv,
            ),
            versions_bytes=version,
            kv_bytes=kv,
            workspace_bytes=workspace,
            host_kv_bytes=moving * block,
        )

    def open(self, opening: EngineOpening) -> Engine:
        """Open the engine on its device; no version is resident yet."""
        full = installed_version()
        abilities = tested_abilities(full)
        model = read_config(opening.model / "config.json")
        check_model(model, opening.device)
        # It takes half a minute to import where files are cold: not where a run is only planned.
        from dora_rl.engines.vllm.library import open_library, prepare_environment

        prepare_environment(opening.device)
        from dora_rl.engines.vllm.vllm_engine import VllmEngine

        num_blocks = opening.config.limits.num_blocks + 1
        library = open_library(
            opening, num_blocks * block_bytes(model, opening.config), moves_kv=abilities.moves_kv
        )
        print(f"vLLM {full} on {opening.device}: {opening.config.limits}", flush=True)
        return VllmEngine(
            library,
            model,
            opening.config,
            stops_of(opening.stop_tokens, opening.tokenizer),
            source=opening.versions,
            abilities=abilities,
        )


VLLM = VllmKind()


def check_model(model: ModelConfig, device: str) -> None:
    """Refuse a model that vLLM cannot serve on this kind of device."""
    if device == "cpu" and model.head_dim not in CPU_HEADS:
        raise ConfigError(
            f"vLLM has no attention on CPUs for heads of {model.head_dim}; it has for "
            f"{', '.join(map(str, CPU_HEADS))}",
            hint="set engine.kind=native, or choose another model",
        )


def check_settings(recipe: Recipe, device: str) -> None:
    """Refuse what a recipe asks of the native engine alone."""
    engine = recipe.engine
    asked = {
        "trainer.router_replay = true": recipe.trainer.router_replay,
        "engine.batch_invariant = true": engine.batch_invariant,
        f"engine.guessed_tokens = {engine.guessed_tokens}": engine.guessed_tokens > 0,
        f"engine.steps_ahead = {engine.steps_ahead}, on a CPU": device == "cpu" and bool(engine.steps_ahead),
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise ConfigError(
                f"engine.kind = vllm has no {what}", hint="leave it out, or set engine.kind=native"
            )


def block_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Bytes of a block of KV."""
    return config.limits.block_size * PagedCache.cell_bytes(model, serving_dtype(config))


def workspace_bytes(model: ModelConfig, config: EngineConfig, device: str) -> int:
    """Bytes that vLLM holds beside weights and KV: its own, and the widest activations of a step.

    Logits are drawn from in float32, with noise beside them; a version read whole waits in host memory.
    """
    limits = config.limits
    logits = limits.max_running * model.vocab_size * 4 * 4
    widest = max(2 * model.intermediate_size, model.q_size + 2 * model.kv_size, model.hidden_size)
    activations = limits.step_tokens * (widest + 2 * model.hidden_size) * 4
    arriving = parameter_bytes(model, serving_dtype(config)) if device == "cpu" else 0
    return logits + activations + arriving + (_CPU_BYTES if device == "cpu" else _CUDA_BYTES)
