"""Set-ups of simulated runs: a preset, a recipe file and overrides become one recipe with nothing left open.

A preset is a named set-up, a partial recipe tree to be laid over the defaults; this is the only place with
the numbers of the published ones. A preset may add to its tree what a schedule needs there: the schedules of
a comparison divide the devices differently. Later ones win: defaults, preset, what the preset adds for the
schedule, file, overrides. What is still open then, the split of the devices, the planner fills in.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dora_rl.control.schedules import make_schedule
from dora_rl.core.errors import ConfigError
from dora_rl.core.recipe import Recipe
from dora_rl.core.recipe.resolution import laid_over, recipe_of, shipped_recipes, with_sections
from dora_rl.core.record import Record
from dora_rl.core.struct_loader import Tree, split_assignment
from dora_rl.core.yaml_text import load_yaml
from dora_rl.costs.gpu_memory import check_memory
from dora_rl.sim.plan.search import decide


class Preset(Record, frozen=True, gc=True):
    """One named set-up: what it stands for, what differs from the defaults, and what by schedule."""

    summary: str
    tree: Tree
    by_schedule: Mapping[str, Tree] = {}


_PAPER_BATCH = 512

_PAPER: Tree = {
    "model": "Qwen2.5-32B",
    "batch": {"groups": _PAPER_BATCH, "group_size": 16, "updates": 16},
    "cluster": {"gpu": "H800", "gpus_per_node": 8, "tensor_parallel": 4, "memory_share": 0.9},
    "task": {
        "prompt_tokens": 162,
        "lengths": {
            "kind": "lognormal",
            "median_tokens": 1100,
            "sigma": 1.2,
            "min_tokens": 20,
            "max_tokens": 30_000,
        },
    },
    "simulation": {
        "warmup_steps": 4,
        "costs": {
            "decode_floor_s": 0.0286,
            "decode_overhead_s": 0.001,
            "bandwidth_efficiency": 0.9,
            "train_efficiency": 0.2,
            "update_s": 10.9,
        },
    },
}
"""Qwen2.5-32B on DAPO-Math-17k, 512 x 16 trajectories of up to 30K tokens; one calibration for every size."""


def _paper(gpus: int, *, rollout_gpus: int) -> Preset:
    """The published set-up on `gpus` devices; `rollout_gpus` is what `dora` gives to generation."""
    colocated = {"elastic_gpus": gpus, "slots": 256}
    quarter = {"rollout_gpus": gpus // 4, "slots": 256}
    split = {"rollout_gpus": rollout_gpus, "slots": 512}
    return Preset(
        summary=f"the DORA paper: Qwen2.5-32B, 512 x 16 trajectories of up to 30K tokens, {gpus} H800",
        tree=_PAPER | {"cluster": _PAPER["cluster"] | {"gpus": gpus}},
        by_schedule={
            "sync": {"cluster": colocated},
            "partial": {
                "cluster": colocated,
                "control": {"max_staleness": 3, "active_groups": 6 * _PAPER_BATCH // 5},
            },
            "one_step_off": {"cluster": quarter},
            "dora_onset": {
                "cluster": quarter,
                "control": {"max_staleness": 2, "active_groups": 2 * _PAPER_BATCH},
            },
            "counted": {"cluster": split, "control": {"max_staleness": 3}},
            "async_ratio": {"cluster": split, "control": {"max_staleness": 3}},
            "dora": {"cluster": split, "control": {"max_staleness": 3, "placement": "exclusive"}},
        },
    )


_LAPTOP: Tree = {
    "model": "Qwen3-0.6B",
    "batch": {"groups": 32, "group_size": 8},
    "control": {"placement": "shared"},
    "cluster": {"gpu": "H200", "gpus": 1, "elastic_gpus": 1, "tensor_parallel": 1},
    # Weights and optimizer of so small a model stay on the device: changing sides moves next to nothing.
    "simulation": {"costs": {"switch_s": 0.3}},
}

_CAPPED: Tree = _LAPTOP | {
    "model": "SmolLM2-135M",
    # Steps of a second: instances say several times in each what their rounds take.
    "control": _LAPTOP["control"] | {"rebalance_period_s": 0.2},
    "cluster": _LAPTOP["cluster"] | {"slots": 512},
    "task": {
        "prompt_tokens": 120,
        "lengths": {"kind": "lognormal", "median_tokens": 900, "sigma": 0.8, "max_tokens": 512},
    },
    # As rounds and steps were measured there: about 1 ms a version and 3 us a row, 0.3 s of training.
    "simulation": {
        "costs": {
            "decode_overhead_s": 0.00094,
            "train_efficiency": 0.5,
            "update_s": 0.03,
            "switch_s": 0.02,
            "publish_s": 0.03,
        }
    },
}
"""Answers that mostly end at the limit, and slots for two batches: all levels of R are about as fast."""

_ONE_NODE: Tree = {
    "model": "Qwen2.5-7B",
    "batch": {"groups": 128, "group_size": 8, "updates": 2},
    "cluster": {"gpu": "H100", "gpus": 8},
    "task": {"lengths": {"kind": "lognormal", "median_tokens": 800, "max_tokens": 16_384}},
}

_AGENTIC: Tree = {
    "model": "Qwen3-32B",
    "batch": {"groups": 128, "group_size": 8},
    "cluster": {"gpu": "H100", "gpus": 64, "slots": 128},
    "task": {
        "prompt_tokens": 1500,
        "lengths": {"kind": "lognormal", "median_tokens": 2000, "max_tokens": 24_000},
        "turns": {"mean_turns": 10, "environment_tokens": 400, "latency_s": 4.0, "latency_sigma": 1.2},
    },
}

_EXPERTS: Tree = {
    "model": "Qwen3-30B-A3B",
    "batch": {"groups": 256, "group_size": 16, "updates": 4},
    "cluster": {"gpu": "H800", "gpus": 64},
    "task": {"lengths": {"kind": "lognormal", "median_tokens": 2500, "max_tokens": 32_768}},
}

_SCALE: Tree = _PAPER | {
    "batch": _PAPER["batch"] | {"groups": 4096},
    "cluster": _PAPER["cluster"] | {"gpus": 1024, "slots": 512},
    # Among so many trajectories the first two versions both have stragglers that hold up a batch.
    "simulation": _PAPER["simulation"] | {"warmup_steps": 6},
}

PRESETS: dict[str, Preset] = {
    "paper-64": _paper(64, rollout_gpus=20),
    "paper-128": _paper(128, rollout_gpus=36),
    "laptop-1gpu": Preset(
        summary="one H200 that generates and trains in turn: Qwen3-0.6B, 32 x 8 trajectories", tree=_LAPTOP
    ),
    "capped-1gpu": Preset(
        summary="one H200 in turn, three answers in four end at the limit: SmolLM2-135M, 32 x 8 trajectories",
        tree=_CAPPED,
    ),
    "h100-8": Preset(
        summary="one node of 8 H100: Qwen2.5-7B, 128 x 8 trajectories of up to 16K tokens", tree=_ONE_NODE
    ),
    "agentic-64": Preset(
        summary="64 H100, ten turns with an environment that takes its time: Qwen3-32B", tree=_AGENTIC
    ),
    "moe-64": Preset(
        summary="64 H800, a mixture of experts: Qwen3-30B-A3B, 256 x 16 trajectories of up to 32K tokens",
        tree=_EXPERTS,
    ),
    "scale": Preset(
        summary="the paper's model at 1,024 H800 and four groups a GPU; `study scale` varies its size",
        tree=_SCALE,
    ),
}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ConfigError(f"no preset named '{name}'", hint=f"known: {', '.join(PRESETS)}")
    return PRESETS[name]


_NO_PRESET = Preset(summary="the defaults", tree={})


def resolve(
    *,
    preset: str | None = None,
    file: Path | None = None,
    assignments: Sequence[str] = (),
    tree: Tree | None = None,
    values: Mapping[str, Any] | None = None,
) -> Recipe:
    """The recipe that a user describes; its split may still be open.

    A file may be given, or the name of a shipped recipe, or a tree; what differs as assignments or as values.
    A model may be a directory beside the file.
    """
    if file is not None and not file.is_file():
        file = shipped_recipes().get(str(file), file)
    base = find_preset(preset) if preset else _NO_PRESET
    given = with_sections(load_yaml(file) if file else tree or {})
    changes = dict(map(split_assignment, assignments)) | dict(values or {})
    source = str(file) if file else f"preset {preset}" if preset else "recipe"
    recipe = recipe_of(laid_over(base.tree, given), changes, source)
    usual = base.by_schedule.get(recipe.control.schedule)
    if usual is not None:
        recipe = recipe_of(laid_over(laid_over(base.tree, usual), given), changes, source)
    if file is not None and (file.parent / recipe.model / "config.json").is_file():
        return replace(recipe, model=str(file.parent / recipe.model))
    return recipe


def complete(recipe: Recipe) -> Recipe:
    """The recipe with its split decided by the planner, checked against device memory."""
    decided = decide(recipe)
    window = make_schedule(decided.control, decided.batch).max_staleness + 1
    num_versions = window + len(decided.frozen_versions)
    check_memory(decided, num_versions=num_versions)
    return decided
