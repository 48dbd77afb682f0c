"""The model to train, as a Hugging Face directory: one that is named, a built-in one, or one of the hub."""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from dora_rl.core.errors import ConfigError, ModelError
from dora_rl.core.recipe.tree import Recipe
from dora_rl.core.user_cache import cache_directory
from dora_rl.model.config import ModelConfig, ModelSizes
from dora_rl.prepare.hub import from_hub
from dora_rl.prepare.recipe_names import check_model_name

_HEAD_DIM = 16
_VLLM_HEAD_DIM = 32
"""Head size of the built-in model where vLLM generates, which has no attention for smaller ones."""


def model_directory(recipe: Recipe, *, has_weights: bool = True) -> Path:
    """The directory of a model or an adapter; a built-in one is made once and kept in the user's cache.

    Without `has_weights` those of a model of the hub are left there.
    """
    name = recipe.model
    if name == "tiny":
        head_dim = _VLLM_HEAD_DIM if recipe.engine.kind == "vllm" else _HEAD_DIM
        return _made(
            f"tiny-{recipe.seed}-{_tiny_digest(head_dim)}",
            lambda directory: _save_tiny(directory, recipe.seed, head_dim),
        )
    if name == "smollm2":
        return _made("smollm2-135m", _save_smollm2)
    check_model_name(name)
    path = Path(name)
    return path.resolve() if path.is_dir() else from_hub(name, has_weights=has_weights)


def _made(name: str, save: Callable[[Path], None]) -> Path:
    directory = cache_directory() / "models" / name
    if directory.is_dir():
        return directory
    try:
        _make(directory, name, save)
    except OSError as error:
        raise ModelError(
            f"the model '{name}' cannot be written to {directory.parent}: {error.strerror}",
            hint="set DORA_CACHE to a directory that can be written",
        ) from error
    return directory


def _make(directory: Path, name: str, save: Callable[[Path], None]) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as temporary:
        made = Path(temporary) / name
        save(made)
        try:
            made.rename(directory)
        except OSError:
            # Another run was faster, and made the same.
            if not directory.is_dir():
                raise


def _save_tiny(directory: Path, seed: int, head_dim: int) -> None:
    from dora_rl.model.tiny import save_tiny

    save_tiny(directory, seed, head_dim=head_dim)


def _tiny_digest(head_dim: int) -> str:
    """A digest of the built-in model's shape: an earlier version of this package may have made another."""
    from dora_rl.model.characters import CHAT_TEMPLATE
    from dora_rl.model.tiny import tiny_config

    return hashlib.sha256(
        msgspec.json.encode([tiny_config(1, head_dim=head_dim), CHAT_TEMPLATE])
    ).hexdigest()[:8]


def _save_smollm2(directory: Path) -> None:
    from dora_rl.model.smollm2 import save_smollm2

    save_smollm2(directory)


def check_routers(model: ModelSizes, recipe: Recipe) -> None:
    """Refuse what is asked of the routers of a model that has none, or of an engine that records nothing."""
    trainer = recipe.trainer
    asked = {"load_balance": trainer.load_balance is not None, "router_replay": trainer.router_replay}
    for key, is_asked in asked.items():
        if is_asked and model.experts is None:
            raise ConfigError(
                f"trainer.{key} is for a mixture of experts, and the model is none", hint="leave it out"
            )
        if is_asked and not isinstance(model, ModelConfig):
            raise ConfigError(
                f"trainer.{key} is for the native decoder, and transformers computes this model",
                hint="leave it out",
            )
    if trainer.router_replay and recipe.engine.kind != "native":
        raise ConfigError(
            f"trainer.router_replay: an engine of kind '{recipe.engine.kind}' does not record experts",
            hint="set engine.kind=native, or leave it out",
        )
