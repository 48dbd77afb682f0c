"""How large an engine may be: versions first, then as much KV as its slots can use and memory holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import torch
from msgspec.structs import replace

from dora_rl.core.errors import ConfigError, NoRoom
from dora_rl.core.instance_spec import GROWTH_TOKENS
from dora_rl.core.recipe import Recipe
from dora_rl.engines.config import EngineConfig, Limits
from dora_rl.engines.native.backend import Backend
from dora_rl.engines.native.cpu_executor import CPU
from dora_rl.engines.native.engine_memory import parameter_bytes, serving_dtype
from dora_rl.engines.native.paged import PagedCache
from dora_rl.engines.protocol import EngineDemand, EngineSize
from dora_rl.model.config import ModelSizes

_GIB = 2**30
_SPARE = 1.02
"""Factor on the bytes that were counted, for rounding in allocators."""


def size_engine(demand: EngineDemand, backend: Backend | None = None) -> EngineSize:
    """Size the engine of one instance; a NoRoom error where nothing would fit.

    The backend is that of the native decoder on the device unless another is given.

    Where the host's memory is apart, no more of it is taken than is free.
    """
    model, recipe, device = demand.model, demand.recipe, demand.device
    free_bytes, free_host_bytes = demand.free_bytes, demand.free_host_bytes
    positions = longest_sequence(model, demand.longest_prompt, demand.max_new_tokens)
    config, backend = _smallest(recipe, device, positions), backend or _backend(device)
    backend.check_model(model, config)
    version = parameter_bytes(model, serving_dtype(config)) + backend.prepared_bytes(model, config)
    versions = config.max_versions * version
    with _threads(demand.num_threads):
        workspace = backend.workspace_bytes(model, config)
    block = config.limits.block_size * PagedCache.cell_bytes(model, serving_dtype(config))
    # One block is the engine's own: what idle rows write to.
    num_blocks = min(wanted_blocks(recipe, config.limits), (free_bytes - versions - workspace) // block - 1)
    least = least_blocks(recipe, config.limits, positions)
    if num_blocks < least:
        needed = versions + workspace + (least + 1) * block
        raise too_little(needed, free_bytes, config.max_versions, demand.note)
    # Requests that move between instances wait there, and where the host's memory is apart, episodes do.
    waits = demand.num_instances > 1 or (recipe.episode is not None and free_host_bytes is not None)
    moving = num_blocks // 4 if waits else 0
    if free_host_bytes is not None:
        moving = min(moving, max(0, free_host_bytes) // block)
    host_tokens = recipe.engine.host_kv_tokens
    num_host_blocks = moving if host_tokens is None else host_tokens // config.limits.block_size
    limits = replace(config.limits, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
    kv = (num_blocks + 1) * block
    engine = replace(
        config,
        limits=limits,
        device_bytes=round(_SPARE * (versions + workspace + kv)),
        host_bytes=max(1, num_host_blocks * block),
    )
    return EngineSize(
        config=engine,
        versions_bytes=versions,
        kv_bytes=kv,
        workspace_bytes=workspace,
        host_kv_bytes=num_host_blocks * block,
    )


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Count with so many threads, as the engine will, whatever this process has."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _smallest(recipe: Recipe, device: str, positions: int) -> EngineConfig:
    """The engine with a single block of KV: everything else is known before the KV is sized."""
    slots = recipe.cluster.slots
    return EngineConfig(
        limits=Limits(
            num_blocks=1,
            block_size=recipe.engine.block_size,
            max_running=slots,
            step_tokens=max(recipe.engine.step_tokens, slots),
            max_positions=positions,
        ),
        dtype=recipe.trainer.serving_dtype,
        max_versions=max_versions(recipe),
        is_batch_invariant=recipe.engine.batch_invariant,
        steps_ahead=steps_ahead(recipe, device),
        guessed_tokens=recipe.engine.guessed_tokens,
        records_experts=recipe.trainer.router_replay,
    )


def least_blocks(recipe: Recipe, limits: Limits, positions: int) -> int:
    """KV blocks of the longest sequence; a ConfigError where the recipe asks for fewer."""
    least = limits.blocks_for(positions)
    if (asked := recipe.engine.kv_tokens) is not None and limits.blocks_for(asked) < least:
        raise ConfigError(
            f"engine.kv_tokens = {asked} hold no sequence of {positions} tokens, prompt and response",
            hint=f"set it to {least * limits.block_size} at least, or leave it out",
        )
    return least


def wanted_blocks(recipe: Recipe, limits: Limits) -> int:
    """KV blocks asked for, else those of the longest sequence in every slot that can be in use.

    Control starts a request only where all that run may grow below its watermark, and counts the copies of
    prompts' last blocks that are kept for their groups.
    """
    if recipe.engine.kv_tokens is not None:
        return limits.blocks_for(recipe.engine.kv_tokens)
    slot = limits.blocks_for(limits.max_positions) * limits.block_size + GROWTH_TOKENS
    groups = (recipe.control.staleness_bound + 1) * recipe.batch.groups + recipe.control.redundant_groups
    evaluated = ceil(recipe.control.evaluation_share * limits.max_running) if recipe.evaluation.every else 0
    spoken = ceil(recipe.control.role_share * limits.max_running) if recipe.frozen_versions else 0
    running = min(limits.max_running, groups * recipe.batch.group_size + evaluated + spoken)
    prompts = groups * limits.block_size
    return limits.blocks_for(ceil((running * slot + prompts) / recipe.control.kv_watermark))


def max_versions(recipe: Recipe) -> int:
    """How many versions to hold: no more than can be live at once, and two wherever one follows another."""
    asked = recipe.cluster.max_versions
    if asked < 2:
        raise ConfigError(
            "cluster.max_versions = 1 leaves no room for the next version, which an instance takes up beside "
            "the one it serves",
            hint="set cluster.max_versions=2 or more, or leave it out",
        )
    num_frozen = len(recipe.frozen_versions)
    if num_frozen and asked < 2 + num_frozen:
        raise ConfigError(
            f"cluster.max_versions = {asked} leaves no room for the frozen version that plays a role",
            hint=f"set cluster.max_versions={2 + num_frozen} or more, or leave it out",
        )
    return max(2 + num_frozen, min(asked, recipe.control.staleness_bound + 1 + num_frozen))


def longest_sequence(model: ModelSizes, longest_prompt: int, max_new_tokens: int) -> int:
    """Tokens of the longest sequence of a run, and one more; a ConfigError where the model takes fewer."""
    positions = longest_prompt + max_new_tokens
    if positions > model.max_positions:
        raise ConfigError(
            f"a prompt of {longest_prompt} tokens and response.max_new_tokens = {max_new_tokens} are "
            f"{positions} positions; the model has {model.max_positions}",
            hint="lower response.max_new_tokens, or leave long prompts out with data.max_prompt_tokens and "
            "data.overlong_prompts=skip",
        )
    return min(model.max_positions, positions + 1)


def steps_ahead(recipe: Recipe, device: str) -> int:
    """Steps launched before an earlier one's answers are taken in, where a recipe leaves it out."""
    asked = recipe.engine.steps_ahead
    return asked if asked is not None else 0 if device == "cpu" else 1


def _backend(device: str) -> Backend:
    if device == "cpu":
        return CPU
    from dora_rl.engines.native.cuda.cuda_backend import CUDA

    return CUDA


def too_little(needed: int, free: int, num_versions: int, note: str) -> NoRoom:
    """The error that an engine does not fit."""
    return NoRoom(
        f"an engine with {num_versions} versions and one sequence of the greatest length needs "
        f"{needed / _GIB:.2f} GiB; {max(0, free) / _GIB:.2f} GiB are left for it{note}"
    )
