"""LoRA factors as a directory that peft opens, and from one that peft wrote.

    adapter_config.json          rank, alpha, targets, and the model that is changed
    adapter_model.safetensors    both factors of every changed matrix, in float32

What an adapter may say and a recipe cannot (another method, biases, ranks by layer) is refused by name: it
would be trained as something else. Its dropout is left behind: it is in no factor, and nothing here drops.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dora_rl.core.errors import ConfigError, ModelError
from dora_rl.core.recipe.trainer_config import LORA_TARGETS, LoraConfig
from dora_rl.model.language_model import LanguageModel, pieces_of
from dora_rl.model.tensor_files import save_tensors

CONFIG, FACTORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_ONLY: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "use_dora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layers_to_transform": None,
}
"""Settings of an adapter that must have this value, or none, because a recipe cannot say another."""


def is_adapter(directory: Path) -> bool:
    """Whether a directory holds an adapter and no model of its own."""
    return (directory / CONFIG).is_file() and not (directory / "config.json").is_file()


def read_adapter_config(directory: Path) -> tuple[str, LoraConfig]:
    """The name or path of the model that an adapter changes, empty where it names none, and how it does.

    A ModelError where the adapter cannot be used here.
    """
    try:
        settings = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        found = {name: settings.get(name) for name in _ONLY}
        base, targets = settings.get("base_model_name_or_path") or "", settings["target_modules"]
        rank, alpha = int(settings["r"]), float(settings["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{directory} is no adapter that can be read: {error}") from error
    for name, only in _ONLY.items():
        if found[name] not in (only, None, [], {}):
            raise ModelError(
                f"the adapter {directory} has {name} = {found[name]!r}, which is not supported here",
                hint="merge it into its model first: peft's merge_and_unload()",
            )
    names = [targets] if isinstance(targets, str) else targets
    ordered = sorted(names, key=lambda name: LORA_TARGETS.index(name) if name in LORA_TARGETS else -1)
    return base, LoraConfig(rank=rank, alpha=alpha, targets=tuple(ordered), adapter=str(directory))


def with_adapter(asked: LoraConfig | None, directory: Path) -> LoraConfig:
    """How a run trains on from an adapter: as the adapter says, which `asked` must not contradict."""
    _, found = read_adapter_config(directory)
    if asked is None:
        return found
    for key in ("rank", "alpha", "targets"):
        own, its, default = (_plain(getattr(each, key)) for each in (asked, found, LoraConfig()))
        if own not in (default, its):
            raise ConfigError(
                f"trainer.lora.{key} is {own}, and {its} in the adapter {directory}",
                hint=f"leave trainer.lora.{key} out",
            )
    return LoraConfig(
        rank=found.rank,
        alpha=found.alpha,
        targets=found.targets,
        adapter=str(directory),
        merged_checkpoints=asked.merged_checkpoints,
    )


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, tuple) else value


def save_adapter(factors: Mapping[str, Tensor], config: LoraConfig, directory: Path, *, base: str) -> None:
    """Write factors by their names among the masters; `base` is the name or path of the model they change."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {f"{_PREFIX}{name}": factor.detach().cpu().contiguous() for name, factor in factors.items()}
    save_tensors(tensors, directory / FACTORS, metadata={"format": "pt"})
    modules = {name.split(".")[-3] for name in factors}
    settings = {
        **_ONLY,
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "target_modules": [target for target in config.targets if target in modules],
        "inference_mode": True,
        "init_lora_weights": True,
    }
    (directory / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def load_factors(directory: Path) -> dict[str, Tensor]:
    """The factors of an adapter in float32, by their names among the masters."""
    try:
        stored = load_file(directory / FACTORS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{directory / FACTORS} cannot be read: {error}") from error
    return {name.removeprefix(_PREFIX): factor.float() for name, factor in stored.items()}


@torch.no_grad()
def merge_adapter(decoder: LanguageModel, config: LoraConfig, factors: Mapping[str, Tensor]) -> None:
    """Add what factors change to a decoder's own weights; a ModelError where one of them has no place."""
    parameters, left = dict(decoder.named_parameters()), dict(factors)
    for piece in pieces_of(decoder.config):
        module = piece.name.removesuffix(".weight")
        a_RI, b_OR = (left.pop(f"{module}.lora_{factor}.weight", None) for factor in "AB")
        if a_RI is None or b_OR is None:
            continue
        own = piece.of(parameters[piece.parameter])
        if (b_OR.shape[0], a_RI.shape[1]) != own.shape:
            raise ModelError(
                f"adapter and model do not belong together: '{module}' is {list(own.shape)}, and the adapter "
                f"changes {[b_OR.shape[0], a_RI.shape[1]]}"
            )
        own.addmm_(b_OR.to(own), a_RI.to(own), alpha=config.scale)
    if left:
        raise ModelError(f"adapter and model do not belong together: only the adapter has '{min(left)}'")


def base_name(origin: Path) -> str:
    """The name of a model for an adapter's config: its name on the hub if it is from there, else its path."""
    for part in origin.absolute().parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/", 1)
    return str(origin.absolute())
