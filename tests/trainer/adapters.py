"""LoRA factors as peft reads them, so that it can check what we merge."""

import json
from pathlib import Path

from dora_rl.model.tensor_files import save_tensors
from dora_rl.trainer.lora import LoraWeights

CONFIG, FACTORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


def save_adapter(weights: LoraWeights, directory: Path, *, base: str | None = None) -> None:
    """Write the factors; `base` is the name or path of the model they change."""
    directory.mkdir(parents=True, exist_ok=True)
    factors = {name for each in weights.factors for name in each.names}
    tensors = {
        f"{_PREFIX}{name}": master.detach().cpu().contiguous()
        for name, master in weights.masters.items()
        if name in factors
    }
    save_tensors(tensors, directory / FACTORS, metadata={"format": "pt"})
    settings: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": weights.config.rank,
        "lora_alpha": weights.config.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(weights.config.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    (directory / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
