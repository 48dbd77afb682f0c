"""What `transformers` and `peft` have loaded already, where a recipe has a path or a section.

Only what is given is touched: neither package is imported here.
"""

from pathlib import Path
from typing import Any

from dora_rl.core.errors import ConfigError, ModelError
from dora_rl.core.recipe.trainer_config import LORA_TARGETS
from dora_rl.core.struct_loader import Tree

_ONLY = {"lora_dropout": 0.0, "bias": "none", "use_dora": False, "use_rslora": False}
"""Settings of a peft LoraConfig that must have this value, because a recipe cannot say another."""


class LoadedModel:
    """A model in memory with its tokenizer, to be written where a run can read them.

    Of a peft model its adapter is written, and the model it changes is read from where that was loaded.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        if not hasattr(model, "save_pretrained"):
            raise ModelError(
                f"model is {type(model).__name__}, and a run starts from a model of transformers or peft, or "
                "from a directory",
                hint="give a path, a name, or what AutoModelForCausalLM.from_pretrained returned",
            )
        if hasattr(model, "peft_config"):
            _check_adapter(model, tokenizer)
        self._model = model
        self._tokenizer = tokenizer if tokenizer is not None else _tokenizer_of(model)

    def save(self, directory: Path) -> None:
        """Write model and tokenizer in Hugging Face format."""
        self._model.save_pretrained(directory)
        self._tokenizer.save_pretrained(directory)


def _check_adapter(model: Any, tokenizer: Any) -> None:
    """Refuse a peft model that would not be trained on as it is."""
    merge = "merge it first: model.merge_and_unload()"
    if list(model.peft_config) != ["default"]:
        raise ModelError(
            f"model is a peft model with the adapters {', '.join(model.peft_config)}", hint=merge
        )
    base, own = (getattr(each, "name_or_path", "") or "" for each in (model, tokenizer))
    if not base:
        raise ModelError("model is a peft model that does not say where its base was loaded from", hint=merge)
    if tokenizer is not None and own != base:
        raise ModelError(
            f"the tokenizer is of '{own}', and a peft model is trained with that of its base, '{base}'",
            hint=f"leave the tokenizer out, or {merge}",
        )


def _tokenizer_of(model: Any) -> Any:
    """The tokenizer from where the model was loaded."""
    origin = getattr(model, "name_or_path", "") or ""
    if not origin:
        raise ModelError(
            "a model was given without a tokenizer, and it does not say where it was loaded from",
            hint="give the tokenizer too: train(model=model, tokenizer=tokenizer, ...)",
        )
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(origin)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"a model was given without a tokenizer, and {origin} has none",
            hint="give the tokenizer too: train(model=model, tokenizer=tokenizer, ...)",
        ) from error


def lora_section(config: Any) -> Tree:
    """The recipe's `trainer.lora` that says what a peft LoraConfig says; what it cannot say is refused."""
    targets = getattr(config, "target_modules", None)
    if not hasattr(config, "r") or not hasattr(config, "lora_alpha"):
        raise ConfigError(
            f"peft_config is {type(config).__name__}, and only LoRA is known", hint="peft.LoraConfig"
        )
    for name, default in _ONLY.items():
        if getattr(config, name, default) != default:
            raise ConfigError(f"peft_config.{name} is not supported here", hint=f"leave it at {default!r}")
    section: Tree = {"rank": int(config.r), "alpha": float(config.lora_alpha)}
    if targets is not None and targets != "all-linear":
        section["targets"] = [targets] if isinstance(targets, str) else sorted(targets, key=_order)
    return section


def _order(target: str) -> int:
    return LORA_TARGETS.index(target) if target in LORA_TARGETS else len(LORA_TARGETS)
